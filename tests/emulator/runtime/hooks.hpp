// The callbacks that clang's sanitizer instrumentation calls.
#pragma once
#include "access.hpp"

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))
#define EMU_CALLER reinterpret_cast<uint64_t>(__builtin_return_address(0))

#define EMU_HOOKS(N)                                                                    \
  EMU_EXPORT void __tsan_read##N(void* p) { access(p, N, false, true, EMU_CALLER); }    \
  EMU_EXPORT void __tsan_write##N(void* p) { access(p, N, true, true, EMU_CALLER); }    \
  EMU_EXPORT void __tsan_unaligned_read##N(void* p) { access(p, N, false, false, EMU_CALLER); } \
  EMU_EXPORT void __tsan_unaligned_write##N(void* p) { access(p, N, true, false, EMU_CALLER); } \
  EMU_EXPORT void __tsan_read_write##N(void* p) {                                       \
    access(p, N, false, true, EMU_CALLER);                                              \
    access(p, N, true, true, EMU_CALLER);                                               \
  }                                                                                     \
  EMU_EXPORT void __tsan_unaligned_read_write##N(void* p) {                             \
    access(p, N, false, false, EMU_CALLER);                                             \
    access(p, N, true, false, EMU_CALLER);                                              \
  }
EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)

EMU_EXPORT void __tsan_init() {}
EMU_EXPORT void __tsan_func_entry(void*) {}
EMU_EXPORT void __tsan_func_exit() {}
EMU_EXPORT void __tsan_read_range(void* p, uint64_t n) {
  if (n) access(p, static_cast<uint32_t>(n), false, false, EMU_CALLER);
}
EMU_EXPORT void __tsan_write_range(void* p, uint64_t n) {
  if (n) access(p, static_cast<uint32_t>(n), true, false, EMU_CALLER);
}
EMU_EXPORT void* __tsan_memcpy(void* to, const void* from, uint64_t n) {
  if (n) access(from, static_cast<uint32_t>(n), false, false, EMU_CALLER);
  if (n) access(to, static_cast<uint32_t>(n), true, false, EMU_CALLER);
  return memcpy(to, from, n);
}
EMU_EXPORT void* __tsan_memmove(void* to, const void* from, uint64_t n) {
  if (n) access(from, static_cast<uint32_t>(n), false, false, EMU_CALLER);
  if (n) access(to, static_cast<uint32_t>(n), true, false, EMU_CALLER);
  return memmove(to, from, n);
}
EMU_EXPORT void* __tsan_memset(void* to, int value, uint64_t n) {
  if (n) access(to, static_cast<uint32_t>(n), true, false, EMU_CALLER);
  return memset(to, value, n);
}

// -fsanitize=array-bounds,integer-divide-by-zero with the minimal runtime
static void bad_index(uint64_t pc) {
  machine.report(INDEX, pc, 0, -1, 0, 0, false, kNoLane);
  machine.give_up();
}
EMU_EXPORT void __ubsan_handle_out_of_bounds_minimal() { bad_index(EMU_CALLER); }
EMU_EXPORT void __ubsan_handle_out_of_bounds_minimal_abort() { bad_index(EMU_CALLER); }
static void bad_division(uint64_t pc) {
  machine.report(CRASH, pc, 0, -1, 0, 0, false, kNoLane);
  machine.give_up();
}
EMU_EXPORT void __ubsan_handle_divrem_overflow_minimal() { bad_division(EMU_CALLER); }
EMU_EXPORT void __ubsan_handle_divrem_overflow_minimal_abort() { bad_division(EMU_CALLER); }

// An atomic of the shim: within bounds, initialised by it, never a race with another atomic.
EMU_EXPORT void emu_atomic(void* p, uint32_t size) {
  Machine& m = machine;
  uint64_t position = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(m.memory.base);
  if (position >= kWindow * kWindows) return elsewhere((uintptr_t)p, size, true, EMU_CALLER);
  int index = m.memory.index_of(position);
  Region& r = m.memory.regions[index];
  uint64_t offset = position % kWindow - kLead;
  if (offset + size > r.size || offset > r.size || r.kind == INPUT)
    return outside(size, true, EMU_CALLER, index, static_cast<int64_t>(offset));
  if (r.buffer) r.buffer->write_bytes += size;
  for (uint64_t g = offset >> r.granule_log2; g <= (offset + size - 1) >> r.granule_log2; g++) {
    Cell& c = r.cells[g];
    uint32_t oldest =
        r.kind == THREADGROUP ? m.threadgroup_start - 1 : m.memory.launch_start;
    if (c.write_phase <= oldest && !r.initialised)
      m.report(UNINITIALISED, EMU_CALLER, 0, index, offset, size, true, kNoLane);
  }
}
