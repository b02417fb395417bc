// Scalars, vectors, conversions between them, and the type traits.
#pragma once

#if !defined(EMU_OPENCL)
typedef _Float16 half;
#endif
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

#define EMU_VECTOR(T)                                     \
  typedef T T##2 __attribute__((ext_vector_type(2)));     \
  typedef T T##3 __attribute__((ext_vector_type(3)));     \
  typedef T T##4 __attribute__((ext_vector_type(4)));
EMU_VECTOR(char)
EMU_VECTOR(uchar)
EMU_VECTOR(short)
EMU_VECTOR(ushort)
EMU_VECTOR(int)
EMU_VECTOR(uint)
EMU_VECTOR(long)
EMU_VECTOR(ulong)
EMU_VECTOR(half)
EMU_VECTOR(bfloat)
EMU_VECTOR(float)
#undef EMU_VECTOR

namespace metal {

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

// ---- traits

template <class T, T v>
struct integral_constant {
  static EMU_CONSTANT T value = v;
  using value_type = T;
  using type = integral_constant;
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};
template <class A, class B>
EMU_CONSTANT bool is_same_v = is_same<A, B>::value;

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

template <class T>
using remove_cv_t = __remove_cv(T);
template <class T>
using remove_const_t = __remove_const(T);
template <class T>
using remove_reference_t = __remove_reference_t(T);
template <class T>
struct remove_cv {
  using type = __remove_cv(T);
};
template <class T>
using remove_addrspace_t = __remove_cv(T);

template <class T>
EMU_CONSTANT bool is_floating_point_v = is_same_v<remove_cv_t<T>, float> ||
    is_same_v<remove_cv_t<T>, half> || is_same_v<remove_cv_t<T>, bfloat>;
template <class T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T>
EMU_CONSTANT bool is_integral_v = __is_integral(T);
template <class T>
struct is_integral : bool_constant<is_integral_v<T>> {};
template <class T>
EMU_CONSTANT bool is_arithmetic_v = is_floating_point_v<T> || is_integral_v<T>;
template <class T>
struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T>
EMU_CONSTANT bool is_signed_v = is_arithmetic_v<T> && (is_floating_point_v<T> || __is_signed(T));
template <class T>
EMU_CONSTANT bool is_unsigned_v = is_integral_v<T> && !__is_signed(T);
template <class A, class B>
EMU_CONSTANT bool is_convertible_v = __is_convertible(A, B);
template <class A, class B>
struct is_convertible : bool_constant<is_convertible_v<A, B>> {};

// ---- vectors

template <class T>
struct emu_vector {
  using element = T;
  static EMU_CONSTANT int size = 1;
  static EMU_CONSTANT bool is_vector = false;
};
template <class T, int N>
struct emu_vector<T __attribute__((ext_vector_type(N)))> {
  using element = T;
  static EMU_CONSTANT int size = N;
  static EMU_CONSTANT bool is_vector = true;
};
template <class T>
using emu_element = typename emu_vector<remove_cv_t<T>>::element;
template <class T>
EMU_CONSTANT int emu_size = emu_vector<remove_cv_t<T>>::size;
template <class T>
EMU_CONSTANT bool emu_is_vector = emu_vector<remove_cv_t<T>>::is_vector;

#if defined(EMU_RUN)
template <class V, class A>
METAL_FUNC void emu_put(V& to, int& at, A value) {
  if constexpr (emu_is_vector<A>) {
    for (int i = 0; i < emu_size<A>; i++) to[at++] = static_cast<emu_element<V>>(value[i]);
  } else {
    to[at++] = static_cast<emu_element<V>>(value);
  }
}
#endif

// float4(a, b, c, d), half4(v), vec<T, 4>(x): the source is rewritten to call this.
template <class V, class... A>
METAL_FUNC V emu_make(A... a) EMU_DEFINE({
  static_assert(sizeof...(A) == 1 || (emu_size<A> + ...) == emu_size<V>,
                "as many components as the vector has");
  if constexpr (sizeof...(A) == 0) {
    return V(0);
  } else if constexpr (sizeof...(A) == 1 && (emu_size<A> + ...) == 1) {
    return V(static_cast<emu_element<V>>((a, ...)));
  } else {
    static_assert((emu_size<A> + ...) == emu_size<V>, "as many components as the vector has");
    V result;
    int at = 0;
    (emu_put(result, at, a), ...);
    return result;
  }
})

template <class To, class From>
METAL_FUNC To as_type(From from) EMU_DEFINE({
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the number of bytes");
  return __builtin_bit_cast(To, from);
})

template <class T, size_t N>
struct array {
  T data_[N];
  constexpr T operator[](size_t i) const { return data_[i]; }
  thread T& operator[](size_t i) { return data_[i]; }
  constexpr size_t size() const { return N; }
};

}  // namespace metal

#if defined(EMU_RUN)
extern "C" void* emu_threadgroup_array(uint k, ulong size, uint granule_log2);
namespace metal {
template <class T>
constexpr uint emu_granule() {  // log2 of the bytes that bookkeeping goes by
  return !emu_is_vector<T> && !is_arithmetic_v<T> ? 0u
      : sizeof(emu_element<T>) == 1               ? 0u
      : sizeof(emu_element<T>) == 2               ? 1u
                                                  : 2u;
}
template <class T>
struct emu_scalar {
  using type = T;
};
template <class T, ulong N>
struct emu_scalar<T[N]> : emu_scalar<T> {};
template <class T>
METAL_FUNC T& emu_threadgroup(uint k) {
  return *static_cast<T*>(
      emu_threadgroup_array(k, sizeof(T), emu_granule<typename emu_scalar<T>::type>()));
}
}  // namespace metal
#endif
