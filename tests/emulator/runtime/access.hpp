// What happens at every load and store of a kernel: bounds, races, initialisation, byte counts.
#pragma once
#include "machine.hpp"

inline void count_line(int buffer, bool write, uint64_t pc, uint32_t size) {
  uint64_t key = (pc << 8 | static_cast<uint64_t>(buffer & 127) << 1 | write) | 1ull << 63;
  uint32_t slot = (pc * 0x9E3779B1u + buffer * 0x85EBCA6Bu) >> 7 & (kLineSlots - 1);
  for (int tries = 0; tries < 64; tries++, slot = (slot + 1) & (kLineSlots - 1)) {
    LineSlot& s = machine.line_slots[slot];
    if (s.key == 0) {
      s.key = key;
      s.value = LineCount{pc, buffer, write, 0, 0};
      machine.lines_used++;
    }
    if (s.key == key) {
      s.value.count++;
      s.value.bytes += size;
      return;
    }
  }
}

inline void read_input(Region& r, int index, uint64_t offset, uint32_t size, uint64_t pc) {
  Buffer* buffer = r.buffer;
  buffer->read_bytes += size;
  uint64_t first = offset >> r.granule_log2, last = (offset + size - 1) >> r.granule_log2;
  uint32_t bytes = 1u << r.granule_log2;
  for (uint64_t g = first; g <= last; g++) {
    uint32_t stamp = r.stamps[g];
    if (stamp == machine.threadgroup_start) continue;
    if (r.valid && !r.valid[g])
      machine.report(BOUNDS, pc, 0, index, offset, size, false, kNoLane);
    r.stamps[g] = machine.threadgroup_start;
    buffer->read_group += bytes;
    if (stamp <= machine.memory.launch_start) buffer->read_unique += bytes;
  }
}

// Was what another lane did at (lane, sync) of this phase left unordered by a simdgroup barrier?
inline bool unordered(uint32_t other_lane, uint32_t other_sync, int memory_class) {
  const Lane& me = *machine.now;
  if (other_lane == me.index) return false;
  if (other_lane / 32 != me.group) return true;
  return other_sync == machine.sync[memory_class][me.group];
}

inline void read_cell(Region& r, Cell& c, int index, uint64_t offset, uint32_t size, uint64_t pc) {
  Machine& m = machine;
  const Lane& me = *m.now;
  int memory_class = r.kind == THREADGROUP ? LOCAL : DEVICE;
  uint32_t phase = m.phase[memory_class];
  uint32_t oldest = r.kind == THREADGROUP ? m.threadgroup_start - 1 : m.memory.launch_start;
  if (c.write_phase <= oldest) {
    if (!r.initialised) m.report(UNINITIALISED, pc, 0, index, offset, size, false, kNoLane);
  } else if (c.write_phase < m.threadgroup_start ||
             (c.write_phase >= phase && unordered(c.write_lane, c.write_sync, memory_class))) {
    m.report(RACE, pc, c.write_pc, index, offset, size, false, c.write_lane);
  }
  uint32_t sync = m.sync[memory_class][me.group];
  if (c.read_phase > oldest && c.read_phase < m.threadgroup_start)
    c.foreign_read = m.threadgroup_start;
  if (c.read_phase != phase) {
    c.read_groups = 0;
    c.read_lanes = 0;
    c.read_phase = phase;
  }
  if (c.read_group != me.group || c.read_sync != sync) c.read_lanes = 0;
  c.read_groups |= 1u << me.group;
  c.read_lanes |= me.bit;
  c.read_group = static_cast<uint8_t>(me.group);
  c.read_sync = sync;
  c.read_pc = static_cast<uint32_t>(m.relative(pc));
}

inline void write_cell(Region& r, Cell& c, int index, uint64_t offset, uint32_t size, uint64_t pc) {
  Machine& m = machine;
  const Lane& me = *m.now;
  int memory_class = r.kind == THREADGROUP ? LOCAL : DEVICE;
  uint32_t phase = m.phase[memory_class];
  uint32_t start = m.memory.launch_start;
  uint32_t oldest = r.kind == THREADGROUP ? m.threadgroup_start - 1 : start;
  if (c.write_phase > oldest &&
      (c.write_phase < m.threadgroup_start ||
       (c.write_phase >= phase && unordered(c.write_lane, c.write_sync, memory_class)))) {
    m.report(RACE, pc, c.write_pc, index, offset, size, true, c.write_lane);
  } else if (c.read_phase > oldest) {
    uint32_t others = c.read_groups & ~(1u << me.group);
    bool here = c.read_group == me.group && c.read_sync == m.sync[memory_class][me.group] &&
                (c.read_lanes & ~me.bit);
    if (c.read_phase < m.threadgroup_start || c.foreign_read > oldest ||
        (c.read_phase >= phase && (others || here)))
      m.report(RACE, pc, c.read_pc, index, offset, size, true, kNoLane);
  }
  if (r.buffer && c.write_phase <= start) r.buffer->write_unique += 1u << r.granule_log2;
  c.write_phase = phase;
  c.write_sync = m.sync[memory_class][me.group];
  c.write_lane = static_cast<uint16_t>(me.index);
  c.write_pc = static_cast<uint32_t>(m.relative(pc));
}

[[gnu::noinline]] inline void outside(uint32_t size, bool write, uint64_t pc, int index,
                                      int64_t offset) {
  machine.report(BOUNDS, pc, 0, index, offset, size, write, kNoLane);
  machine.give_up();
}

[[gnu::noinline]] inline void elsewhere(uintptr_t address, uint32_t size, bool write, uint64_t pc) {
  // A lane's own variables, or the constants of its code; nothing else can be written.
  if (!write || machine.stacks.owns(address)) return;
  outside(size, write, pc, -1, static_cast<int64_t>(address));
}

[[gnu::always_inline]] inline void access(const void* pointer, uint32_t size, bool write, bool aligned, uint64_t pc) {
  Machine& m = machine;
  if (!m.now) return;
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  uint64_t position = address - reinterpret_cast<uintptr_t>(m.memory.base);
  if (position >= kWindow * kWindows) return elsewhere(address, size, write, pc);
  int index = m.memory.index_of(position);
  Region& r = m.memory.regions[index];
  uint64_t offset = position % kWindow - kLead;
  if (offset + size > r.size || offset > r.size)
    return outside(size, write, pc, index, static_cast<int64_t>(offset));
  if (aligned && offset % (size < 8 ? size : 8)) m.report(MISALIGNED, pc, 0, index, offset, size, write, kNoLane);
  count_line(index, write, m.relative(pc), size);
  if (r.kind == INPUT) {
    if (!write) return read_input(r, index, offset, size, pc);
    m.report(READ_ONLY, pc, 0, index, offset, size, true, kNoLane);
    m.give_up();
  }
  if (r.buffer) (write ? r.buffer->write_bytes : r.buffer->read_bytes) += size;
  uint64_t first = offset >> r.granule_log2, last = (offset + size - 1) >> r.granule_log2;
  for (uint64_t g = first; g <= last; g++)
    write ? write_cell(r, r.cells[g], index, offset, size, pc)
          : read_cell(r, r.cells[g], index, offset, size, pc);
}
