// What MLX puts in front of every custom kernel (its utils.h), as far as kernels use it.
#pragma once

using metal::as_type;
typedef half float16_t;
typedef bfloat bfloat16_t;

template <typename U>
struct Limits {
  static EMU_CONSTANT U max = metal::numeric_limits<U>::max();
  static EMU_CONSTANT U min = metal::numeric_limits<U>::min();
  static EMU_CONSTANT U finite_max = metal::numeric_limits<U>::max();
  static EMU_CONSTANT U finite_min = metal::numeric_limits<U>::lowest();
};
#define EMU_LIMITS(T)                                                                  \
  template <>                                                                          \
  struct Limits<T> {                                                                   \
    static EMU_CONSTANT T max = metal::numeric_limits<T>::infinity();            \
    static EMU_CONSTANT T min = static_cast<T>(-INFINITY);                       \
    static EMU_CONSTANT T finite_max = metal::numeric_limits<T>::max();          \
    static EMU_CONSTANT T finite_min = metal::numeric_limits<T>::lowest();       \
  };
EMU_LIMITS(float)
EMU_LIMITS(half)
EMU_LIMITS(bfloat)
#undef EMU_LIMITS

template <typename T, typename U>
METAL_FUNC constexpr T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}

template <typename Index = int64_t>
METAL_FUNC Index elem_to_loc(
    Index elem, const constant int* shape, const constant int64_t* strides, int ndim) {
  Index loc = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    loc += (elem % shape[i]) * Index(strides[i]);
    elem /= shape[i];
  }
  return loc;
}

using namespace metal;
