// What the Python driver (program.py) and the runtime share. Field order is the contract.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum BufferKind { INPUT = 0, OUTPUT = 1, THREADGROUP = 2 };

enum FindingKind {
  RACE = 1,       // two lanes, one of them writing, with no barrier between
  BOUNDS,         // an access outside its buffer or between the elements of a strided view
  UNINITIALISED,  // a read of threadgroup memory or of an output before any write
  READ_ONLY,      // a write to an input
  UNWRITTEN,      // an output element that no lane wrote
  MISALIGNED,     // a vector access at an address that is no multiple of its size
  DIVERGENT,      // lanes of one group stopped at different collectives or barriers
  INACTIVE,       // a shuffle that reads a lane which has returned or does not exist
  WATCHDOG,       // the launch ran longer than allowed
  CRASH,          // a machine fault: wild pointer, division by zero, stack overflow
  INDEX,          // an index outside a thread-private array
  MEMORY_LIMIT,   // more than 32 KB of threadgroup memory
};

struct Buffer {
  const char* name;
  int32_t kind;
  int32_t granule_log2;   // bookkeeping unit: 1, 2 or 4 bytes
  uint64_t size;          // bytes
  void* data;             // copied in before the launch; outputs are copied out after it
  const uint8_t* valid;   // one byte per granule: is it an element of the view; null when all are
  int32_t initialised;    // outputs: 1 when `data` holds values a kernel may read
  int32_t pad;
  uint64_t read_bytes, write_bytes;    // the sum over lanes of what they asked for
  uint64_t read_unique, write_unique;  // distinct bytes touched in the launch
  uint64_t read_group;                 // distinct bytes read, summed over threadgroups
};

struct Finding {
  int32_t kind;
  int32_t buffer;        // index into buffers; 64 + i for the i-th threadgroup array; -1 for none
  uint64_t pc, other_pc; // relative to the kernel library; 0 when unknown
  int64_t offset;        // bytes from the start of the buffer
  uint32_t size;
  uint32_t write;        // was this access a write
  uint32_t lane, other_lane;  // linear thread index in the threadgroup
  uint32_t group[3];          // threadgroup position
  uint32_t count;             // how often
};

struct LineCount {
  uint64_t pc;
  int32_t buffer;
  int32_t write;
  uint64_t count, bytes;
};

struct Launch {
  void* entry;          // void (*)(void** buffers, const Ids*)
  uint64_t module_base;
  uint32_t grid[3];     // threads
  uint32_t group[3];    // threads per threadgroup
  int32_t buffer_count;
  int32_t finding_capacity;
  struct Buffer* buffers;
  struct Finding* findings;
  struct LineCount* lines;
  int32_t line_capacity;
  int32_t finding_count;  // out
  int32_t line_count;     // out
  int32_t aborted;        // out: the launch did not run to its end
  uint64_t seed;          // of the order in which lanes, simdgroups and threadgroups run
  double timeout;         // seconds
  uint64_t threadgroup_bytes;      // out
  uint64_t threadgroup_size[64];   // out: bytes of each threadgroup array that was met
  uint32_t threadgroup_site[64];   // out: which declaration of the source it is
  int32_t threadgroup_count;       // out
  int32_t pad;
  uint64_t rendezvous;    // out: collectives and barriers executed
};

// Metal's thread attributes of one lane.
struct __attribute__((aligned(16))) Ids {
  uint32_t thread_position_in_grid[4];
  uint32_t threadgroup_position_in_grid[4];
  uint32_t thread_position_in_threadgroup[4];
  uint32_t threads_per_grid[4];
  uint32_t threadgroups_per_grid[4];
  uint32_t threads_per_threadgroup[4];           // smaller at the edges of the grid
  uint32_t dispatch_threads_per_threadgroup[4];  // as asked for
  uint32_t thread_index_in_threadgroup;
  uint32_t thread_index_in_simdgroup;
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup;
};

// What the 32 lanes of a simdgroup hand to a collective, and what they get back.
struct Exchange {
  uint64_t a[32], b[32], out[32];
  uint32_t active;  // a bit per lane that takes part
  uint32_t lanes;   // lanes that the simdgroup has
};
typedef void (*Collective)(struct Exchange*);
