// Relaxed atomics. They are within bounds and initialised, and order nothing.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#if defined(EMU_RUN)
}  // namespace metal
extern "C" void emu_atomic(void* address, uint size);
namespace metal {

struct emu_set { template <class T> static T of(T, T b) { return b; } };

template <class Op, class T>
__attribute__((noinline, no_sanitize("thread"))) T emu_exchange_atomic(atomic<T>* a, T with) {
  emu_atomic(a, sizeof(T));
  T old = a->value;
  a->value = Op::of(old, with);
  return old;
}
#define EMU_ATOMIC(NAME, OP)                                                       \
  template <class T>                                                               \
  METAL_FUNC T atomic_##NAME##_explicit(atomic<T>* a, T with, memory_order) {      \
    return emu_exchange_atomic<OP>(a, with);                                       \
  }
#else
#define EMU_ATOMIC(NAME, OP)                                                       \
  template <class T, class U>                                                      \
  T atomic_##NAME##_explicit(device atomic<T>* a, U with, memory_order);           \
  template <class T, class U>                                                      \
  T atomic_##NAME##_explicit(threadgroup atomic<T>* a, U with, memory_order);
#endif
EMU_ATOMIC(exchange, emu_set)
EMU_ATOMIC(fetch_add, emu_add)
EMU_ATOMIC(fetch_max, emu_max)
EMU_ATOMIC(fetch_min, emu_min)
EMU_ATOMIC(fetch_or, emu_or)
EMU_ATOMIC(fetch_and, emu_and)
#undef EMU_ATOMIC

}  // namespace metal
