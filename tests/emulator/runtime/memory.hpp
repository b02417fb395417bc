// Device and threadgroup memory, and what is remembered of every piece of it.
//
// Each buffer and each threadgroup array lives in a window of its own, far from the others, so an
// index that runs off its end never lands in a neighbour. Time is one counter, `clock`, that moves
// on at every threadgroup start and every threadgroup barrier and never back: shadow memory needs
// no clearing between launches, an old stamp simply is too old.
#pragma once
#include <string.h>
#include <sys/mman.h>

#include "abi.h"

constexpr uint64_t kWindow = 1ull << 30;
constexpr int kThreadgroupWindow = 64;  // the first of 64 windows for threadgroup arrays
constexpr int kWindows = 128;
constexpr uint64_t kLead = 64 << 10;  // unmapped bytes before the data, as well as after it
constexpr int kNoLane = 0xffff;

// One granule of memory that lanes may write.
struct Cell {
  uint32_t write_phase, write_pc, write_sync;
  uint32_t read_phase, read_pc, read_sync;
  uint32_t read_groups;  // simdgroups that read it in read_phase
  uint32_t read_lanes;   // lanes of read_group that read it since its last simdgroup barrier
  uint32_t foreign_read;  // when two threadgroups had read it; too old when not in this launch
  uint16_t write_lane;
  uint8_t read_group;
};

struct Region {
  char* data;            // base + kLead of the window
  uint64_t size;         // bytes that may be touched
  uint64_t mapped;       // bytes from `data` with memory behind them
  int32_t kind;
  int32_t granule_log2;
  uint32_t* stamps;      // inputs: the threadgroup that last read the granule
  Cell* cells;           // outputs and threadgroup arrays
  uint64_t shadow_bytes;
  const uint8_t* valid;
  bool initialised;
  Buffer* buffer;        // counters; null for threadgroup arrays
};

struct Memory {
  char* base = nullptr;
  Region regions[kWindows];
  uint32_t clock = 0;
  uint32_t launch_start = 0;  // the clock before the first threadgroup of this launch

  bool reserve() {
    if (base) return true;
    void* p = mmap(nullptr, kWindow * kWindows, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    base = static_cast<char*>(p);
    memset(regions, 0, sizeof regions);
    for (int i = 0; i < kWindows; i++) regions[i].data = base + i * kWindow + kLead;
    return true;
  }

  // Gives window `index` room for `size` bytes, poisoned with NaN bits, and its shadow.
  bool open(int index, int kind, uint64_t size, int granule_log2) {
    Region& r = regions[index];
    if (size > kWindow - 2 * kLead) return false;
    uint64_t pages = (size + 4095) & ~4095ull;
    if (pages < r.mapped) {  // what lies beyond the end faults, whoever touches it
      mprotect(r.data + pages, r.mapped - pages, PROT_NONE);
      madvise(r.data + pages, r.mapped - pages, MADV_DONTNEED);
    } else if (pages > r.mapped && mprotect(r.data, pages, PROT_READ | PROT_WRITE)) {
      return false;
    }
    r.mapped = pages;
    r.size = size;
    r.kind = kind;
    r.granule_log2 = granule_log2;
    r.valid = nullptr;
    r.initialised = false;
    r.buffer = nullptr;
    memset(r.data, 0xff, pages);
    uint64_t granules = (size >> granule_log2) + 2;
    return shadow(r, granules * (kind == INPUT ? sizeof(uint32_t) : sizeof(Cell)));
  }

  int index_of(uint64_t offset) const { return static_cast<int>(offset / kWindow); }

  void close() {
    for (Region& r : regions) r.size = 0;
  }

 private:
  bool shadow(Region& r, uint64_t bytes) {
    char* old = r.stamps ? reinterpret_cast<char*>(r.stamps) : reinterpret_cast<char*>(r.cells);
    if (bytes > r.shadow_bytes) {
      if (old) munmap(old, r.shadow_bytes);
      bytes = (bytes + bytes / 2 + 4095) & ~4095ull;
      void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      r.shadow_bytes = p == MAP_FAILED ? 0 : bytes;
      old = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
    } else if ((r.kind == INPUT) != (r.stamps != nullptr)) {
      memset(old, 0, r.shadow_bytes);  // stamps and cells lay claim to the same bytes
    }
    r.stamps = r.kind == INPUT ? reinterpret_cast<uint32_t*>(old) : nullptr;
    r.cells = r.kind == INPUT ? nullptr : reinterpret_cast<Cell*>(old);
    return old != nullptr;
  }
};
