// Metal's standard library, as much of it as attention kernels use, in three dialects:
//   EMU_RUN     C++ that runs: address spaces are erased, functions have bodies
//   EMU_CXX     check A, C++: device, constant and threadgroup are numbered address spaces
//   EMU_OPENCL  check B, C++ for OpenCL: they are OpenCL's, and there is no generic one
// The checks only need declarations.
#pragma once

#if defined(EMU_RUN)
#define device
#define constant const
#define threadgroup
#define thread
#elif defined(EMU_CXX)
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#else
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#endif
#define kernel
#if defined(EMU_OPENCL)
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define EMU_CONSTANT constexpr constant
#else
#define EMU_CONSTANT constexpr
#endif

#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL__ 1
#define __METAL_VERSION__ 310

#if defined(EMU_RUN)
#define EMU_DEFINE(...) \
  { __VA_ARGS__ }
#else
#define EMU_DEFINE(...) ;
#endif

#include "types.h"
#include "limits.h"
#include "math.h"
#include "simd.h"
#include "matrix.h"
#include "atomic.h"
#include "mlx.h"
