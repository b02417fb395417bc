// 8×8 matrices held by a simdgroup, two elements to a lane, in the layout of Apple's GPUs:
// lane 0 1 8 9 hold row 0, lanes 2 3 10 11 row 1, and so on.
#pragma once

#if defined(EMU_RUN)
struct emu_pair {
  float x, y;
};
extern "C" EMU_STOP emu_pair emu_multiply_accumulate(
    float a0, float a1, float b0, float b1, float c0, float c1);
#endif

namespace metal {

#if defined(EMU_RUN)
METAL_FUNC uint emu_row() {
  uint lane = emu_lane();
  return (lane >> 2 & 4) | (lane >> 1 & 3);
}
METAL_FUNC uint emu_column() {
  uint lane = emu_lane();
  return (lane >> 1 & 4) | (lane << 1 & 2);
}
#endif

template <class T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "Metal has 8x8 simdgroup matrices only");
  static_assert(is_floating_point_v<T>, "simdgroup matrices hold float, half or bfloat");
  typedef vec<T, 2> storage_type;
  storage_type elements;
  simdgroup_matrix() = default;
#if defined(EMU_OPENCL)  // there, no reference binds to a temporary
  simdgroup_matrix(const thread simdgroup_matrix&) = default;
  thread simdgroup_matrix& operator=(simdgroup_matrix);
#endif
  explicit simdgroup_matrix(T diagonal) EMU_DEFINE(
      elements[0] = emu_row() == emu_column() ? diagonal : T(0);
      elements[1] = emu_row() == emu_column() + 1 ? diagonal : T(0);)
  thread storage_type& thread_elements() thread { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Cols, int Rows>
METAL_FUNC simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) EMU_DEFINE(
    simdgroup_matrix<T, Cols, Rows> m; m.elements = vec<T, 2>(value); return m;)

#if defined(EMU_RUN)
template <class T, class P>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P from, ulong stride = 8,
                               ulong2 origin = 0, bool transpose = false) {
  ulong row = emu_row(), column = emu_column();
  from += origin.y * stride + origin.x;
  m.elements[0] = transpose ? from[column * stride + row] : from[row * stride + column];
  m.elements[1] = transpose ? from[(column + 1) * stride + row] : from[row * stride + column + 1];
}
template <class T, class P>
METAL_FUNC void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, P to, ulong stride = 8,
                                ulong2 origin = 0, bool transpose = false) {
  ulong row = emu_row(), column = emu_column();
  to += origin.y * stride + origin.x;
  (transpose ? to[column * stride + row] : to[row * stride + column]) = m.elements[0];
  (transpose ? to[(column + 1) * stride + row] : to[row * stride + column + 1]) = m.elements[1];
}
#else
#define EMU_TRANSFER(SPACE)                                                                     \
  template <class T>                                                                            \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& m, const SPACE T* from,                 \
                      ulong stride = 8, ulong2 origin = 0, bool transpose = false);             \
  template <class T>                                                                            \
  void simdgroup_store(const thread simdgroup_matrix<T, 8, 8>& m, SPACE T* to,                  \
                       ulong stride = 8, ulong2 origin = 0, bool transpose = false);
EMU_TRANSFER(device)
EMU_TRANSFER(threadgroup)
#undef EMU_TRANSFER
#endif

template <class D, class A, class B, class C>
METAL_FUNC void simdgroup_multiply_accumulate(
    thread simdgroup_matrix<D, 8, 8>& d, const thread simdgroup_matrix<A, 8, 8>& a,
    const thread simdgroup_matrix<B, 8, 8>& b, const thread simdgroup_matrix<C, 8, 8>& c)
    EMU_DEFINE({
      emu_pair r = emu_multiply_accumulate(
          float(a.elements[0]), float(a.elements[1]), float(b.elements[0]),
          float(b.elements[1]), float(c.elements[0]), float(c.elements[1]));
      d.elements[0] = static_cast<D>(r.x);
      d.elements[1] = static_cast<D>(r.y);
    })
template <class D, class A, class B>
METAL_FUNC void simdgroup_multiply(
    thread simdgroup_matrix<D, 8, 8>& d, const thread simdgroup_matrix<A, 8, 8>& a,
    const thread simdgroup_matrix<B, 8, 8>& b) EMU_DEFINE({
  simdgroup_matrix<float, 8, 8> zero;
  zero.elements = 0.0f;
  simdgroup_multiply_accumulate(d, a, b, zero);
})

}  // namespace metal
