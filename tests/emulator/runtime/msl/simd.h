// Barriers and what the lanes of a simdgroup do together. In the running dialect each of these
// stops the lane until its whole simdgroup (or threadgroup) has come to the same place.
#pragma once

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

}  // namespace metal

#if defined(EMU_RUN)
struct emu_exchange {
  ulong a[32], b[32], out[32];
  uint active, lanes;
};
typedef void (*emu_operation)(emu_exchange*);
#define EMU_STOP __attribute__((convergent))
extern "C" {
EMU_STOP ulong emu_collective(emu_operation, ulong a, ulong b);
EMU_STOP void emu_threadgroup_barrier(uint flags);
EMU_STOP void emu_simdgroup_barrier(uint flags);
uint emu_lane() __attribute__((const));
void emu_inactive(ulong pc);
}
#endif

namespace metal {

METAL_FUNC void threadgroup_barrier(mem_flags flags)
    EMU_DEFINE(emu_threadgroup_barrier(static_cast<uint>(flags));)
METAL_FUNC void simdgroup_barrier(mem_flags flags)
    EMU_DEFINE(emu_simdgroup_barrier(static_cast<uint>(flags));)

#if defined(EMU_RUN)

#define EMU_OPERATION static __attribute__((no_sanitize("thread"))) void

template <class T>
METAL_FUNC ulong emu_bits(T value) {
  static_assert(sizeof(T) <= 8, "collectives take scalars, or vectors one component at a time");
  ulong bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
METAL_FUNC T emu_value(ulong bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

struct emu_add { template <class T> static T of(T a, T b) { return static_cast<T>(a + b); } };
struct emu_mul { template <class T> static T of(T a, T b) { return static_cast<T>(a * b); } };
struct emu_max { template <class T> static T of(T a, T b) { return a < b ? b : a; } };
struct emu_min { template <class T> static T of(T a, T b) { return b < a ? b : a; } };
struct emu_and { template <class T> static T of(T a, T b) { return static_cast<T>(a & b); } };
struct emu_or { template <class T> static T of(T a, T b) { return static_cast<T>(a | b); } };
struct emu_xor { template <class T> static T of(T a, T b) { return static_cast<T>(a ^ b); } };

// The pairwise tree of a butterfly over the active lanes; W = 32 for simd_, 4 for quad_.
template <class T, class Op, int W>
EMU_OPERATION emu_reduce(emu_exchange* x) {
  for (int base = 0; base < 32; base += W) {
    T value[W];
    bool has[W];
    for (int i = 0; i < W; i++) {
      value[i] = emu_value<T>(x->a[base + i]);
      has[i] = x->active >> (base + i) & 1;
    }
    for (int half_ = W / 2; half_; half_ /= 2)
      for (int i = 0; i < half_; i++) {
        if (has[i] && has[i + half_]) value[i] = Op::of(value[i], value[i + half_]);
        else if (has[i + half_]) value[i] = value[i + half_];
        has[i] |= has[i + half_];
      }
    for (int i = 0; i < W; i++) x->out[base + i] = emu_bits(value[0]);
  }
}

template <class T, class Op, bool Inclusive>
EMU_OPERATION emu_scan(emu_exchange* x) {
  T running = Op::of(T(0), T(0)) == T(0) ? T(0) : T(1);
  if (is_same_v<Op, emu_mul>) running = T(1);
  for (int i = 0; i < 32; i++) {
    if (!(x->active >> i & 1)) continue;
    T next = Op::of(running, emu_value<T>(x->a[i]));
    x->out[i] = emu_bits(Inclusive ? next : running);
    running = next;
  }
}

// out[i] = a[b[i]]; reading a lane that is not there is reported, and gives NaN bits.
template <int Unused>
EMU_OPERATION emu_gather(emu_exchange* x) {
  for (int i = 0; i < 32; i++) {
    if (!(x->active >> i & 1)) continue;
    ulong from = x->b[i];
    if (from >= 32 || !(x->active >> from & 1)) {
      emu_inactive(0);
      x->out[i] = ~0ul;
    } else {
      x->out[i] = x->a[from];
    }
  }
}

template <int Unused>
EMU_OPERATION emu_ballot(emu_exchange* x) {
  ulong votes = 0;
  for (int i = 0; i < 32; i++)
    if (x->active >> i & 1 && x->a[i]) votes |= 1ul << i;
  for (int i = 0; i < 32; i++) x->out[i] = votes | static_cast<ulong>(x->active) << 32;
}

#define EMU_COMPONENTS(T, CALL)                             \
  if constexpr (emu_is_vector<T>) {                         \
    T result;                                               \
    for (int i = 0; i < emu_size<T>; i++) result[i] = CALL; \
    return result;                                          \
  } else

template <class T>
METAL_FUNC T emu_shuffle(T v, uint from) {
  EMU_COMPONENTS(T, emu_shuffle(v[i], from)) {
    return emu_value<T>(emu_collective(emu_gather<0>, emu_bits(v), from));
  }
}
METAL_FUNC ulong emu_votes(bool mine) { return emu_collective(emu_ballot<0>, mine, 0); }

#else
#define EMU_COMPONENTS(T, CALL)
#endif

#define EMU_REDUCTION(NAME, OP, W)                                      \
  template <class T>                                                    \
  METAL_FUNC emu_number_only<T> NAME(T v) EMU_DEFINE({                  \
    EMU_COMPONENTS(T, NAME(v[i])) {                                     \
      return emu_value<T>(emu_collective(emu_reduce<T, OP, W>, emu_bits(v), 0)); \
    }                                                                   \
  })
EMU_REDUCTION(simd_sum, emu_add, 32)
EMU_REDUCTION(simd_product, emu_mul, 32)
EMU_REDUCTION(simd_max, emu_max, 32)
EMU_REDUCTION(simd_min, emu_min, 32)
EMU_REDUCTION(simd_and, emu_and, 32)
EMU_REDUCTION(simd_or, emu_or, 32)
EMU_REDUCTION(simd_xor, emu_xor, 32)
EMU_REDUCTION(quad_sum, emu_add, 4)
EMU_REDUCTION(quad_product, emu_mul, 4)
EMU_REDUCTION(quad_max, emu_max, 4)
EMU_REDUCTION(quad_min, emu_min, 4)

#define EMU_PREFIX(NAME, OP, INCLUSIVE)                                 \
  template <class T>                                                    \
  METAL_FUNC emu_number_only<T> NAME(T v) EMU_DEFINE({                  \
    EMU_COMPONENTS(T, NAME(v[i])) {                                     \
      return emu_value<T>(emu_collective(emu_scan<T, OP, INCLUSIVE>, emu_bits(v), 0)); \
    }                                                                   \
  })
EMU_PREFIX(simd_prefix_inclusive_sum, emu_add, true)
EMU_PREFIX(simd_prefix_exclusive_sum, emu_add, false)
EMU_PREFIX(simd_prefix_inclusive_product, emu_mul, true)
EMU_PREFIX(simd_prefix_exclusive_product, emu_mul, false)

template <class T>
METAL_FUNC T simd_shuffle(T v, ushort lane) EMU_DEFINE(return emu_shuffle(v, lane);)
template <class T>
METAL_FUNC T simd_shuffle_xor(T v, ushort mask) EMU_DEFINE(return emu_shuffle(v, emu_lane() ^ mask);)
template <class T>
METAL_FUNC T simd_broadcast(T v, ushort lane) EMU_DEFINE(return emu_shuffle(v, lane);)
template <class T>
METAL_FUNC T simd_broadcast_first(T v) EMU_DEFINE(
    return emu_shuffle(v, __builtin_ctz(static_cast<uint>(emu_votes(true) >> 32)));)
template <class T>
METAL_FUNC T simd_shuffle_down(T v, ushort by) EMU_DEFINE(
    uint lane = emu_lane(); return emu_shuffle(v, lane + by < 32 ? lane + by : lane);)
template <class T>
METAL_FUNC T simd_shuffle_up(T v, ushort by) EMU_DEFINE(
    uint lane = emu_lane(); return emu_shuffle(v, lane >= by ? lane - by : lane);)
template <class T>
METAL_FUNC T simd_shuffle_rotate_down(T v, ushort by)
    EMU_DEFINE(return emu_shuffle(v, (emu_lane() + by) & 31);)
template <class T>
METAL_FUNC T simd_shuffle_rotate_up(T v, ushort by)
    EMU_DEFINE(return emu_shuffle(v, (emu_lane() - by) & 31);)
template <class T>
METAL_FUNC T quad_shuffle(T v, ushort lane)
    EMU_DEFINE(return emu_shuffle(v, (emu_lane() & 28) | (lane & 3));)
template <class T>
METAL_FUNC T quad_shuffle_xor(T v, ushort mask)
    EMU_DEFINE(return emu_shuffle(v, emu_lane() ^ (mask & 3));)
template <class T>
METAL_FUNC T quad_broadcast(T v, ushort lane)
    EMU_DEFINE(return emu_shuffle(v, (emu_lane() & 28) | (lane & 3));)

METAL_FUNC bool simd_all(bool v)
    EMU_DEFINE(ulong votes = emu_votes(v); return static_cast<uint>(votes) == votes >> 32;)
METAL_FUNC bool simd_any(bool v) EMU_DEFINE(return static_cast<uint>(emu_votes(v)) != 0;)
METAL_FUNC bool simd_is_first()
    EMU_DEFINE(return emu_lane() == __builtin_ctz(static_cast<uint>(emu_votes(true) >> 32));)

#if defined(EMU_OPENCL)  // there, a temporary has no members that could be called
typedef ulong simd_vote;
#else
struct simd_vote {
  ulong mask;
  constexpr explicit operator ulong() const { return mask; }
};
#endif
METAL_FUNC simd_vote simd_ballot(bool v)
    EMU_DEFINE(return simd_vote{emu_votes(v) & 0xfffffffful};)
METAL_FUNC simd_vote simd_active_threads_mask() EMU_DEFINE(return simd_vote{emu_votes(true) >> 32};)

}  // namespace metal
