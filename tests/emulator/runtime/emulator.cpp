// Runs a kernel over its grid: one fiber per lane, one threadgroup after the other.
#include "guard.hpp"
#include "hooks.hpp"
#include "machine.hpp"

Machine machine;

// ---- what the shim calls from a lane ----------------------------------------------------------

// Leaves the lane that runs, to the next one of this round or to the scheduler.
static void leave(Lane* lane) {
  Machine& m = machine;
  m.now = *m.next;
  emu_switch(&lane->sp, m.now ? (*m.next++)->sp : m.scheduler_sp);
}

static void stop(LaneState state, uint64_t pc) {
  Lane* lane = machine.now;
  lane->state = state;
  lane->pc = pc;
  leave(lane);
}

EMU_EXPORT uint64_t emu_collective(Collective op, uint64_t a, uint64_t b) {
  Lane* lane = machine.now;
  lane->op = op;
  lane->a = a;
  lane->b = b;
  stop(AT_COLLECTIVE, EMU_CALLER);
  return lane->out;
}

EMU_EXPORT void emu_threadgroup_barrier(uint32_t flags) {
  machine.now->flags = flags;
  stop(AT_BARRIER, EMU_CALLER);
}

// Operations that the scheduler carries out itself; they differ by address.
static void nothing(Exchange* x) { x->lanes = 0; }

EMU_EXPORT void emu_simdgroup_barrier(uint32_t flags) {
  Lane* lane = machine.now;
  lane->op = nothing;
  lane->flags = flags | 1u << 31;
  stop(AT_COLLECTIVE, EMU_CALLER);
}

static void multiply_accumulate(Exchange* x) { x->lanes = 1; }

struct Pair {
  float x, y;
};

EMU_EXPORT Pair emu_multiply_accumulate(float a0, float a1, float b0, float b1, float c0,
                                        float c1) {
  Lane* lane = machine.now;
  const float elements[6] = {a0, a1, b0, b1, c0, c1};
  memcpy(lane->matrix, elements, sizeof elements);
  lane->op = multiply_accumulate;
  stop(AT_COLLECTIVE, EMU_CALLER);
  return Pair{lane->matrix[0], lane->matrix[1]};
}

EMU_EXPORT uint32_t emu_lane() { return machine.now->index & 31; }

EMU_EXPORT void emu_inactive(uint64_t pc) {
  machine.report(INACTIVE, pc, 0, -1, 0, 0, false, kNoLane);
}

// The memory of the threadgroup array that declaration `site` of the source asks for.
EMU_EXPORT void* emu_threadgroup_array(uint32_t site, uint64_t size, uint32_t granule_log2) {
  Machine& m = machine;
  Launch* launch = m.launch;
  int i = 0;
  while (i < launch->threadgroup_count && launch->threadgroup_site[i] != site) i++;
  int index = kThreadgroupWindow + i;
  if (i < launch->threadgroup_count) return m.memory.regions[index].data;
  launch->threadgroup_bytes += (size + 15) & ~15ull;
  if (launch->threadgroup_bytes > 32768 || index == kWindows) {
    m.report(MEMORY_LIMIT, EMU_CALLER, 0, -1, 0, static_cast<uint32_t>(launch->threadgroup_bytes),
             false, kNoLane);
    m.give_up();
  }
  if (!m.memory.open(index, THREADGROUP, size, granule_log2)) m.give_up();
  launch->threadgroup_site[i] = site;
  launch->threadgroup_size[i] = size;
  launch->threadgroup_count++;
  return m.memory.regions[index].data;
}

// ---- scheduling -------------------------------------------------------------------------------

static void lane_main() {
  Machine& m = machine;
  reinterpret_cast<void (*)(void**, const Ids*)>(m.launch->entry)(m.buffers, &m.now->ids);
  m.now->state = DONE;
  leave(m.now);
  __builtin_unreachable();
}

// The i-th of n in an order that depends on the random numbers a (odd) and b.
static uint32_t shuffled(uint32_t i, uint32_t a, uint32_t b, uint32_t power_of_two) {
  return (i * (a | 1) + b) & (power_of_two - 1);
}

// D = A·B + C in float32, from and to the layout of matrix.h.
static void multiply(Lane* first, uint32_t active) {
  typedef float Row __attribute__((vector_size(32)));
  if (active != 0xffffffff) machine.report(INACTIVE, first->pc, 0, -1, 0, 0, false, kNoLane);
  Row a[8], b[8], d[8];
  for (uint32_t i = 0; i < 32; i++) {
    uint32_t row = (i >> 2 & 4) | (i >> 1 & 3), column = (i >> 1 & 4) | (i << 1 & 2);
    for (uint32_t j = 0; j < 2; j++) {
      a[row][column + j] = first[i].matrix[j];
      b[row][column + j] = first[i].matrix[2 + j];
      d[row][column + j] = first[i].matrix[4 + j];
    }
  }
  for (int i = 0; i < 8; i++)
    for (int k = 0; k < 8; k++) d[i] += a[i][k] * b[k];
  for (uint32_t i = 0; i < 32; i++) {
    uint32_t row = (i >> 2 & 4) | (i >> 1 & 3), column = (i >> 1 & 4) | (i << 1 & 2);
    for (uint32_t j = 0; j < 2; j++) first[i].matrix[j] = d[row][column + j];
  }
}

static void diverged(const Lane& one, const Lane& other) {
  machine.now = const_cast<Lane*>(&one);
  machine.report(DIVERGENT, one.pc, machine.relative(other.pc), -1, 0, one.state, false,
                 other.index);
  machine.now = nullptr;
}

static bool give_up_between() {
  machine.abort = true;
  machine.launch->aborted = 1;
  return false;
}

// The lanes that wait at a collective, all of `first` that are not done, carry it out.
static bool collect(Lane* first, uint32_t count) {
  Machine& m = machine;
  static Exchange x;
  x.active = 0;
  x.lanes = count;
  Lane* leader = first;
  while (leader->state != AT_COLLECTIVE) leader++;
  for (uint32_t i = 0; i < count; i++) {
    Lane& lane = first[i];
    if (lane.state != AT_COLLECTIVE) continue;
    x.active |= 1u << i;
    lane.state = READY;
    if (lane.pc == leader->pc) continue;
    diverged(*leader, lane);
    if (lane.op != leader->op) return give_up_between();
  }
  m.launch->rendezvous++;
  m.now = leader;  // for what the operation may report
  if (leader->op == multiply_accumulate) {
    multiply(first, x.active);
  } else if (leader->op == nothing) {
    if (leader->flags & 1) m.sync[DEVICE][leader->group]++;
    if (leader->flags & 2) m.sync[LOCAL][leader->group]++;
  } else {
    for (uint32_t i = 0; i < count; i++) {
      x.a[i] = first[i].a;
      x.b[i] = first[i].b;
    }
    leader->op(&x);
    for (uint32_t i = 0; i < count; i++) first[i].out = x.out[i];
  }
  m.now = nullptr;
  return true;
}

// Runs the lanes that are ready, each until it stops, in some order.
static bool run_round(Lane* first, uint32_t count) {
  Machine& m = machine;
  uint32_t a = m.next_random(), b = m.next_random();
  Lane** end = m.round;
  for (uint32_t i = 0; i < 32; i++) {
    uint32_t k = shuffled(i, a, b, 32);
    if (k < count && first[k].state == READY) *end++ = first + k;
  }
  *end = nullptr;
  m.next = m.round;
  m.now = *m.next;
  if (m.now) emu_switch(&m.scheduler_sp, (*m.next++)->sp);
  m.now = nullptr;
  return !m.abort;
}

// Runs a simdgroup until each of its lanes waits at a threadgroup barrier or is done.
static void run_simdgroup(uint32_t group) {
  Machine& m = machine;
  Lane* first = m.lanes + group * 32;
  uint32_t count = m.lane_count - group * 32 < 32 ? m.lane_count - group * 32 : 32;
  for (;;) {
    if (!run_round(first, count)) return;
    Lane *collective = nullptr, *barrier = nullptr;
    for (uint32_t i = 0; i < count; i++) {
      if (first[i].state == AT_COLLECTIVE) collective = first + i;
      if (first[i].state == AT_BARRIER) barrier = first + i;
    }
    if (!collective) return;
    if (barrier) {
      diverged(*collective, *barrier);
      give_up_between();
      return;
    }
    if (!collect(first, count)) return;
  }
}

// All simdgroups have stopped: let the barrier pass. Returns false when every lane is done.
static bool pass_barrier() {
  Machine& m = machine;
  Lane *waiting = nullptr, *done = nullptr;
  for (uint32_t i = 0; i < m.lane_count; i++) {
    Lane& lane = m.lanes[i];
    if (lane.state == DONE) {
      done = &lane;
    } else if (!waiting) {
      waiting = &lane;
    } else if (lane.pc != waiting->pc) {
      diverged(*waiting, lane);
    }
  }
  if (!waiting) return false;
  if (done) {
    done->pc = 0;
    diverged(*waiting, *done);
  }
  m.launch->rendezvous++;
  uint32_t now = ++m.memory.clock;
  if (waiting->flags & 1) m.phase[DEVICE] = now;
  if (waiting->flags & 2) m.phase[LOCAL] = now;
  for (uint32_t i = 0; i < m.lane_count; i++)
    if (m.lanes[i].state == AT_BARRIER) m.lanes[i].state = READY;
  return true;
}

static void begin_lane(uint32_t index, const uint32_t extent[3], const uint32_t groups[3]) {
  Machine& m = machine;
  Lane& lane = m.lanes[index];
  lane.sp = fresh_fiber(m.stacks.stack(index), index, lane_main);
  lane.state = READY;
  lane.index = index;
  lane.group = index / 32;
  lane.bit = 1u << (index % 32);
  Ids& ids = lane.ids;
  uint32_t position[3] = {index % extent[0], index / extent[0] % extent[1],
                          index / extent[0] / extent[1]};
  for (int d = 0; d < 3; d++) {
    ids.thread_position_in_threadgroup[d] = position[d];
    ids.threadgroup_position_in_grid[d] = m.group_position[d];
    ids.thread_position_in_grid[d] = m.group_position[d] * m.launch->group[d] + position[d];
    ids.threads_per_grid[d] = m.launch->grid[d];
    ids.threadgroups_per_grid[d] = groups[d];
    ids.threads_per_threadgroup[d] = extent[d];
    ids.dispatch_threads_per_threadgroup[d] = m.launch->group[d];
  }
  ids.thread_index_in_threadgroup = index;
  ids.thread_index_in_simdgroup = index % 32;
  ids.simdgroup_index_in_threadgroup = index / 32;
  ids.simdgroups_per_threadgroup = m.group_count;
}

static void run_threadgroup(const uint32_t groups[3]) {
  Machine& m = machine;
  uint32_t extent[3];
  for (int d = 0; d < 3; d++) {
    uint32_t rest = m.launch->grid[d] - m.group_position[d] * m.launch->group[d];
    extent[d] = rest < m.launch->group[d] ? rest : m.launch->group[d];
  }
  m.lane_count = extent[0] * extent[1] * extent[2];
  m.group_count = (m.lane_count + 31) / 32;
  m.threadgroup_start = m.phase[DEVICE] = m.phase[LOCAL] = ++m.memory.clock;
  memset(m.sync, 0, sizeof m.sync);
  for (int k = kThreadgroupWindow; k < kWindows; k++) {
    Region& r = m.memory.regions[k];
    if (r.size) memset(r.data, 0xff, r.size);
  }
  for (uint32_t i = 0; i < m.lane_count; i++) begin_lane(i, extent, groups);
  do {
    uint32_t a = m.next_random(), b = m.next_random();
    for (uint32_t i = 0; i < 32 && !m.abort; i++) {
      uint32_t group = shuffled(i, a, b, 32);
      if (group < m.group_count) run_simdgroup(group);
    }
  } while (!m.abort && pass_barrier());
}

static void run_grid() {
  Machine& m = machine;
  uint32_t groups[3];
  for (int d = 0; d < 3; d++)
    groups[d] = (m.launch->grid[d] + m.launch->group[d] - 1) / m.launch->group[d];
  uint64_t count = static_cast<uint64_t>(groups[0]) * groups[1] * groups[2];
  uint32_t power = 1;
  while (power < count) power *= 2;
  uint32_t a = m.next_random(), b = m.next_random();
  for (uint32_t i = 0; i < power && !m.abort; i++) {
    uint32_t g = shuffled(i, a, b, power);
    if (g >= count) continue;
    m.group_position[0] = g % groups[0];
    m.group_position[1] = g / groups[0] % groups[1];
    m.group_position[2] = g / groups[0] / groups[1];
    run_threadgroup(groups);
  }
}

// ---- one launch -------------------------------------------------------------------------------

static bool copy_in(Launch* launch) {
  Machine& m = machine;
  if (!m.memory.reserve() || !m.stacks.stack(0)) return false;
  m.memory.close();
  for (int i = 0; i < launch->buffer_count; i++) {
    Buffer& b = launch->buffers[i];
    if (!m.memory.open(i, b.kind, b.size, b.granule_log2)) return false;
    Region& r = m.memory.regions[i];
    r.buffer = &b;
    r.valid = b.valid;
    r.initialised = b.initialised;
    if (b.kind == INPUT || b.initialised) memcpy(r.data, b.data, b.size);
    m.buffers[i] = r.data;
  }
  return true;
}

static void find_unwritten(int index) {
  Machine& m = machine;
  Region& r = m.memory.regions[index];
  if (r.initialised) return;
  uint64_t granules = r.size >> r.granule_log2, missing = 0, first = 0;
  for (uint64_t g = 0; g < granules; g++) {
    if (r.cells[g].write_phase > m.memory.launch_start) continue;
    if (!missing++) first = g;
  }
  if (!missing) return;
  for (int d = 0; d < 3; d++) m.group_position[d] = 0;
  Finding* f = m.report(UNWRITTEN, 0, 0, index, static_cast<int64_t>(first << r.granule_log2),
                        1u << r.granule_log2, false, kNoLane);
  if (f) f->count = static_cast<uint32_t>(missing);
}

static void copy_out(Launch* launch) {
  Machine& m = machine;
  for (int i = 0; i < launch->buffer_count; i++) {
    if (launch->buffers[i].kind != OUTPUT) continue;
    memcpy(launch->buffers[i].data, m.memory.regions[i].data, launch->buffers[i].size);
    if (!launch->aborted) find_unwritten(i);
  }
  for (LineSlot& s : m.line_slots)
    if (s.key && launch->line_count < launch->line_capacity)
      launch->lines[launch->line_count++] = s.value;
}

EMU_EXPORT int emu_launch(Launch* launch) {
  Machine& m = machine;
  m.launch = launch;
  m.abort = false;
  m.now = nullptr;
  m.random = launch->seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull;
  if (m.lines_used) memset(m.line_slots, 0, sizeof m.line_slots);
  m.lines_used = 0;
  if (!copy_in(launch)) return 1;
  m.memory.launch_start = m.memory.clock;
  {
    Guard guard(launch->timeout);
    if (sigsetjmp(m.escape, 1) == 0) run_grid();
  }
  m.now = nullptr;
  copy_out(launch);
  m.launch = nullptr;
  return 0;
}

// The conversion to bfloat16, which libgcc has only since version 13.
EMU_EXPORT __attribute__((weak)) __bf16 __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bool nan = (bits & 0x7fffffff) > 0x7f800000;
  uint16_t rounded = nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  __bf16 result;
  memcpy(&result, &rounded, 2);
  return result;
}
