// Math and integer functions. Floating-point ones go through float, as half and bfloat do on Metal
// within an ulp; fast:: and precise:: are the same function here.
#pragma once

namespace metal {

template <class T>
using emu_float_only = enable_if_t<is_floating_point_v<emu_element<T>>, T>;
template <class T>
using emu_int_only = enable_if_t<is_integral_v<emu_element<T>>, T>;
template <class T>
using emu_number_only = enable_if_t<is_arithmetic_v<emu_element<T>>, T>;

#define EMU_EACH(T, CALL)                              \
  if constexpr (emu_is_vector<T>) {                    \
    T result;                                          \
    for (int i = 0; i < emu_size<T>; i++) result[i] = CALL; \
    return result;                                     \
  } else

#define EMU_UNARY(NAME, EXPRESSION)                          \
  template <class T>                                         \
  METAL_FUNC emu_float_only<T> NAME(T x) EMU_DEFINE({        \
    EMU_EACH(T, NAME(x[i])) {                                \
      float v = static_cast<float>(x);                       \
      return static_cast<T>(EXPRESSION);                     \
    }                                                        \
  })
#define EMU_BINARY(NAME, EXPRESSION)                         \
  template <class T>                                         \
  METAL_FUNC emu_float_only<T> NAME(T x, T y) EMU_DEFINE({   \
    EMU_EACH(T, NAME(x[i], y[i])) {                          \
      float v = static_cast<float>(x), w = static_cast<float>(y); \
      return static_cast<T>(EXPRESSION);                     \
    }                                                        \
  })

#define EMU_MATH                                             \
  EMU_UNARY(exp, __builtin_expf(v))                          \
  EMU_UNARY(exp2, __builtin_exp2f(v))                        \
  EMU_UNARY(exp10, __builtin_powf(10.0f, v))                 \
  EMU_UNARY(log, __builtin_logf(v))                          \
  EMU_UNARY(log2, __builtin_log2f(v))                        \
  EMU_UNARY(log10, __builtin_log10f(v))                      \
  EMU_UNARY(sqrt, __builtin_sqrtf(v))                        \
  EMU_UNARY(rsqrt, 1.0f / __builtin_sqrtf(v))                \
  EMU_UNARY(sin, __builtin_sinf(v))                          \
  EMU_UNARY(cos, __builtin_cosf(v))                          \
  EMU_UNARY(tan, __builtin_tanf(v))                          \
  EMU_UNARY(asin, __builtin_asinf(v))                        \
  EMU_UNARY(acos, __builtin_acosf(v))                        \
  EMU_UNARY(atan, __builtin_atanf(v))                        \
  EMU_UNARY(sinh, __builtin_sinhf(v))                        \
  EMU_UNARY(cosh, __builtin_coshf(v))                        \
  EMU_UNARY(tanh, __builtin_tanhf(v))                        \
  EMU_UNARY(fabs, __builtin_fabsf(v))                        \
  EMU_UNARY(floor, __builtin_floorf(v))                      \
  EMU_UNARY(ceil, __builtin_ceilf(v))                        \
  EMU_UNARY(trunc, __builtin_truncf(v))                      \
  EMU_UNARY(rint, __builtin_rintf(v))                        \
  EMU_UNARY(round, __builtin_roundf(v))                      \
  EMU_UNARY(fract, v - __builtin_floorf(v))                  \
  EMU_UNARY(saturate, v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v) \
  EMU_BINARY(pow, __builtin_powf(v, w))                      \
  EMU_BINARY(powr, __builtin_powf(v, w))                     \
  EMU_BINARY(fmod, __builtin_fmodf(v, w))                    \
  EMU_BINARY(atan2, __builtin_atan2f(v, w))                  \
  EMU_BINARY(fmin, __builtin_fminf(v, w))                    \
  EMU_BINARY(fmax, __builtin_fmaxf(v, w))                    \
  EMU_BINARY(fdim, __builtin_fdimf(v, w))                    \
  EMU_BINARY(divide, v / w)                                  \
  EMU_BINARY(copysign, __builtin_copysignf(v, w))

EMU_MATH
EMU_UNARY(sign, v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f)
namespace precise {
EMU_MATH
}
namespace fast {
EMU_MATH
}
#undef EMU_MATH

template <class T>
METAL_FUNC emu_float_only<T> fma(T x, T y, T z) EMU_DEFINE({
  EMU_EACH(T, fma(x[i], y[i], z[i])) {
    return static_cast<T>(__builtin_fmaf(
        static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)));
  }
})
template <class T>
METAL_FUNC emu_float_only<T> mad(T x, T y, T z) EMU_DEFINE(return x * y + z;)
template <class T>
METAL_FUNC emu_float_only<T> mix(T x, T y, T a) EMU_DEFINE(return x + (y - x) * a;)
template <class T>
METAL_FUNC emu_float_only<T> step(T edge, T x) EMU_DEFINE(return x < edge ? T(0) : T(1);)
template <class T>
METAL_FUNC emu_float_only<T> ldexp(T x, int e)
    EMU_DEFINE(return static_cast<T>(__builtin_ldexpf(static_cast<float>(x), e));)

#define EMU_TEST(NAME, EXPRESSION)                                                   \
  template <class T>                                                                 \
  METAL_FUNC enable_if_t<is_floating_point_v<T>, bool> NAME(T x)                     \
      EMU_DEFINE(float v = static_cast<float>(x); return EXPRESSION;)
EMU_TEST(isnan, v != v)
EMU_TEST(isinf, __builtin_fabsf(v) == INFINITY)
EMU_TEST(isfinite, __builtin_fabsf(v) < INFINITY)
EMU_TEST(signbit, __builtin_signbitf(v))
#undef EMU_TEST

// ---- for every arithmetic type

template <class T>
METAL_FUNC constexpr emu_number_only<T> max(T x, T y) {
  EMU_EACH(T, max(x[i], y[i])) { return x < y ? y : x; }
}
template <class T>
METAL_FUNC constexpr emu_number_only<T> min(T x, T y) {
  EMU_EACH(T, min(x[i], y[i])) { return y < x ? y : x; }
}
template <class T>
METAL_FUNC constexpr emu_number_only<T> max3(T x, T y, T z) { return max(x, max(y, z)); }
template <class T>
METAL_FUNC constexpr emu_number_only<T> min3(T x, T y, T z) { return min(x, min(y, z)); }
template <class T>
METAL_FUNC constexpr emu_number_only<T> clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T>
METAL_FUNC constexpr emu_number_only<T> abs(T x) {
  EMU_EACH(T, abs(x[i])) { return x < T(0) ? T(-x) : x; }
}
template <class T>
METAL_FUNC constexpr T select(T if_false, T if_true, bool condition) {
  return condition ? if_true : if_false;
}

template <class T, int N>
METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) EMU_DEFINE({
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
})

// ---- integers

#define EMU_BITS(NAME, EXPRESSION)                      \
  template <class T>                                    \
  METAL_FUNC emu_int_only<T> NAME(T x) EMU_DEFINE({     \
    EMU_EACH(T, NAME(x[i])) {                           \
      constexpr int bits = 8 * sizeof(T);               \
      ulong v = static_cast<ulong>(x);                  \
      if constexpr (bits < 64) v &= (1ul << bits) - 1;  \
      return static_cast<T>(EXPRESSION);                \
    }                                                   \
  })
EMU_BITS(popcount, __builtin_popcountl(v))
EMU_BITS(clz, v ? __builtin_clzl(v) - (64 - bits) : bits)
EMU_BITS(ctz, v ? __builtin_ctzl(v) : bits)
EMU_BITS(reverse_bits, __builtin_bitreverse64(v) >> (64 - bits))
#undef EMU_BITS

template <class T>
METAL_FUNC emu_int_only<T> mulhi(T x, T y) EMU_DEFINE({
  EMU_EACH(T, mulhi(x[i], y[i])) {
    return static_cast<T>((static_cast<__int128>(x) * y) >> (8 * sizeof(T)));
  }
})
template <class T>
METAL_FUNC emu_int_only<T> extract_bits(T x, uint offset, uint bits) EMU_DEFINE({
  EMU_EACH(T, extract_bits(x[i], offset, bits)) {
    return bits == 0 ? T(0) : T(T(x << (8 * sizeof(T) - offset - bits)) >> (8 * sizeof(T) - bits));
  }
})
template <class T>
METAL_FUNC emu_int_only<T> rotate(T x, T by) EMU_DEFINE({
  EMU_EACH(T, rotate(x[i], by[i])) {
    constexpr ulong bits = 8 * sizeof(T);
    ulong v = static_cast<ulong>(x) & (~0ul >> (64 - bits)), n = static_cast<ulong>(by) % bits;
    return static_cast<T>(n ? v << n | v >> (bits - n) : v);
  }
})

#undef EMU_EACH
#undef EMU_UNARY
#undef EMU_BINARY

}  // namespace metal
