// The state of one launch: lanes, simdgroups, barriers, findings.
#pragma once
#include <setjmp.h>

#include "fiber.hpp"
#include "memory.hpp"

enum LaneState { READY, AT_COLLECTIVE, AT_BARRIER, DONE };
enum MemoryClass { DEVICE = 0, LOCAL = 1 };  // what a barrier's flags speak of

struct Lane {
  void* sp;
  uint64_t a, b, out;  // a collective's arguments and result
  float matrix[6];     // of a, b, c in a multiply_accumulate; the result in the first two
  Collective op;
  uint64_t pc;         // where it stopped
  uint32_t flags;      // of the barrier it stopped at
  LaneState state;
  uint32_t index;      // linear thread index in the threadgroup
  uint32_t group;      // simdgroup
  uint32_t bit;        // 1 << lane in simdgroup
  Ids ids;
};

struct LineSlot {
  uint64_t key;
  LineCount value;
};
constexpr int kLineSlots = 1 << 13;

struct Machine {
  Memory memory;
  StackPool stacks;
  Launch* launch = nullptr;
  Lane lanes[kMaxLanes];
  Lane* now = nullptr;       // the lane that runs; null in the scheduler
  Lane* round[33];           // the lanes still to run before the scheduler does, then null
  Lane** next = round;
  void* scheduler_sp = nullptr;
  uint32_t lane_count = 0, group_count = 0;
  uint32_t group_position[3];
  uint32_t threadgroup_start = 0;  // the clock when this threadgroup began
  uint32_t phase[2];               // per memory class: the clock at the last threadgroup barrier
  uint32_t sync[2][32];            // per memory class: simdgroup barriers of each simdgroup
  bool abort = false;
  uint64_t random = 0;
  void* buffers[64];
  LineSlot line_slots[kLineSlots];
  int lines_used = 0;
  sigjmp_buf escape;               // out of a machine fault

  uint32_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<uint32_t>(random >> 16);
  }

  uint64_t relative(uint64_t pc) const { return pc ? pc - launch->module_base : 0; }

  // Records a finding, or counts it again; returns it.
  Finding* report(int kind, uint64_t pc, uint64_t other_pc, int buffer, int64_t offset,
                  uint32_t size, bool write, uint32_t other_lane);

  // Leaves the launch for good, from a lane.
  [[noreturn]] void give_up() {
    abort = true;
    launch->aborted = 1;
    void* unused;
    emu_switch(&unused, scheduler_sp);
    __builtin_unreachable();
  }
};

extern Machine machine;

inline Finding* Machine::report(int kind, uint64_t pc, uint64_t other_pc, int buffer,
                                int64_t offset, uint32_t size, bool write, uint32_t other_lane) {
  pc = relative(pc);
  for (int i = 0; i < launch->finding_count; i++) {
    Finding& f = launch->findings[i];
    if (f.kind == kind && f.pc == pc && f.other_pc == other_pc && f.buffer == buffer) {
      f.count++;
      return &f;
    }
  }
  if (launch->finding_count == launch->finding_capacity) return nullptr;
  Finding& f = launch->findings[launch->finding_count++];
  f = Finding{};
  f.kind = kind;
  f.buffer = buffer;
  f.pc = pc;
  f.other_pc = other_pc;
  f.offset = offset;
  f.size = size;
  f.write = write;
  f.lane = now ? now->index : kNoLane;
  f.other_lane = other_lane;
  for (int i = 0; i < 3; i++) f.group[i] = group_position[i];
  f.count = 1;
  return &f;
}
