// How the runtime calls a kernel: buffers by pointer, Metal's thread attributes from one struct.
#pragma once

struct emu_ids {
  uint4 thread_position_in_grid;
  uint4 threadgroup_position_in_grid;
  uint4 thread_position_in_threadgroup;
  uint4 threads_per_grid;
  uint4 threadgroups_per_grid;
  uint4 threads_per_threadgroup;
  uint4 dispatch_threads_per_threadgroup;
  uint thread_index_in_threadgroup;
  uint thread_index_in_simdgroup;
  uint simdgroup_index_in_threadgroup;
  uint simdgroups_per_threadgroup;
};

template <class F>
struct emu_function;
template <class... A>
struct emu_function<void(A...)> {
  template <int i>
  using argument = __type_pack_element<i, A...>;
};

template <class P>
struct emu_pass {
  static P buffer(void* p) { return static_cast<P>(p); }
  template <class V>
  static P id(V v) {
    if constexpr (!metal::emu_is_vector<V>) return static_cast<P>(v);
    else if constexpr (metal::emu_size<P> == 1) return static_cast<P>(v.x);
    else if constexpr (metal::emu_size<P> == 2) return metal::emu_make<P>(v.x, v.y);
    else return metal::emu_make<P>(v.x, v.y, v.z);
  }
};
template <class P>
struct emu_pass<P&> {
  static P& buffer(void* p) { return *static_cast<P*>(p); }
};
