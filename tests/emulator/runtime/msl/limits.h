// numeric_limits and the constants of <metal_limits> and <metal_math>.
#pragma once

#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX 6.5504e+4f
#define INFINITY __builtin_huge_valf()
#define HUGE_VALF __builtin_huge_valf()
#define NAN __builtin_nanf("")
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f

namespace metal {

template <class T>
struct numeric_limits {
  static EMU_CONSTANT bool is_signed = T(-1) < T(0);
  static EMU_CONSTANT int digits = 8 * sizeof(T) - is_signed;
  static constexpr T max() {
    return is_signed ? T((T(1) << (digits - 1)) - 1 + (T(1) << (digits - 1))) : T(~T(0));
  }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};

#define EMU_LIMITS(T, MAX, MIN, EPSILON)                                      \
  template <>                                                                 \
  struct numeric_limits<T> {                                                  \
    static EMU_CONSTANT bool is_signed = true;                                 \
    static constexpr T max() { return static_cast<T>(MAX); }                  \
    static constexpr T min() { return static_cast<T>(MIN); }                  \
    static constexpr T lowest() { return static_cast<T>(-(MAX)); }            \
    static constexpr T epsilon() { return static_cast<T>(EPSILON); }          \
    static constexpr T infinity() { return static_cast<T>(INFINITY); }        \
    static constexpr T quiet_NaN() { return static_cast<T>(NAN); }            \
  };
EMU_LIMITS(float, FLT_MAX, FLT_MIN, FLT_EPSILON)
EMU_LIMITS(half, 65504.0f, 6.103515625e-05f, 9.765625e-04f)
EMU_LIMITS(bfloat, 3.38953138925e+38f, FLT_MIN, 7.8125e-03f)
#undef EMU_LIMITS

}  // namespace metal
