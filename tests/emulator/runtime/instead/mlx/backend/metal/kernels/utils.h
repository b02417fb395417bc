// Stands for MLX's header, which overloads members on address spaces alone: they are erased here.
// msl/mlx.h has what kernels use of it, this is what MLX's own kernels need besides.
#pragma once

struct complex64_t {
  float real, imag;
  complex64_t() = default;
  complex64_t(float r, float i) : real(r), imag(i) {}
};

template <bool condition, typename T, typename U>
struct ConditionalType {
  using type = metal::conditional_t<condition, T, U>;
};
