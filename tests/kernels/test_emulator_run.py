"""The emulator gives what Metal's specification says, on small kernels of each kind."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, emulate, emulated, find_clang
from emulator.trial import metal

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)

DTYPES = [mx.float32, mx.float16, mx.bfloat16]


LANE = np.arange(32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_rounds_to_the_type_after_each_operation(dtype):
    a, b = (mx.random.normal((100,), key=mx.random.key(i)).astype(dtype) for i in (1, 2))
    out, _ = metal(
        "uint i = thread_position_in_grid.x; o[i] = (a[i] * b[i] + a[i]) / b[i];",
        inputs=[a, b],
        shape=(100,),
        dtype=dtype,
    )
    expected = (a * b + a) / b  # MLX rounds each operation on its own
    np.testing.assert_array_equal(out, np.array(expected.astype(mx.float32)))


REDUCE = """
    uint group = threadgroup_position_in_grid.x;
    uint lane = thread_index_in_simdgroup, simd = simdgroup_index_in_threadgroup;
    threadgroup float partial[32];
    float sum = 0.0f;
    for (int i = thread_position_in_threadgroup.x; i < a_shape[1];
         i += threads_per_threadgroup.x) {
      sum += float(a[group * a_strides[0] + i * a_strides[1]]);
    }
    sum = simd_sum(sum);
    if (lane == 0) {
      partial[simd] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0) {
      sum = simd_sum(lane < simdgroups_per_threadgroup ? partial[lane] : 0.0f);
      if (lane == 0) {
        o[group] = T(sum);
      }
    }
"""


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    threads=st.integers(1, 8),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_reduction_over_a_threadgroup(rows, columns, threads, dtype, seed):
    whole = mx.random.randint(-4, 5, (rows, columns + 3)).astype(dtype)
    out, report = metal(
        REDUCE,
        inputs=[whole[:, 2:-1]],
        shape=(rows,),
        dtype=dtype,
        template=[("T", dtype)],
        grid=rows * 32 * threads,
        threadgroup=32 * threads,
        seed=seed,
    )
    expected = whole[:, 2:-1].astype(mx.float32).sum(1).astype(dtype).astype(mx.float32)
    np.testing.assert_array_equal(out, np.array(expected))
    assert report.launches[0].traffic["a"].read == rows * columns * dtype.size


MULTIPLY = """
    uint row = threadgroup_position_in_grid.y * 8, column = threadgroup_position_in_grid.x * 8;
    int n = a_shape[1];
    simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int k = 0; k < n; k += 8) {
      simdgroup_matrix<T, 8, 8> x, y;
      simdgroup_load(x, a + row * n + k, n);
      simdgroup_load(y, b + column * n + k, n, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sum, x, y, sum);
    }
    simdgroup_store(sum, o + row * b_shape[0] + column, b_shape[0]);
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_simdgroup_matrices(dtype):
    a = mx.random.normal((16, 40), key=mx.random.key(1)).astype(dtype)
    b = mx.random.normal((24, 40), key=mx.random.key(2)).astype(dtype)
    out, report = metal(
        MULTIPLY,
        inputs=[a, b],
        shape=(16, 24),
        template=[("T", dtype)],
        grid=(3 * 32, 2, 1),
        threadgroup=(32, 1, 1),
    )
    wide = [np.array(x.astype(mx.float32), dtype=np.float64) for x in (a, b)]
    np.testing.assert_allclose(out, wide[0] @ wide[1].T, atol=1e-5)
    traffic = report.launches[0].traffic
    assert traffic["a"].read == traffic["a"].group_read == 3 * a.nbytes
    assert traffic["a"].unique_read == a.nbytes
    assert traffic["o"].written == traffic["o"].unique_written == 16 * 24 * 4


def test_matrix_elements_lie_where_apple_has_them():
    # Row and column of lane i's first element, as MLX's BaseMMAFrag::get_coord has them.
    out, _ = metal(
        """uint i = thread_index_in_simdgroup;
        simdgroup_matrix<float, 8, 8> m;
        simdgroup_load(m, a, 8);
        o[2 * i] = m.thread_elements()[0];
        o[2 * i + 1] = m.thread_elements()[1];""",
        inputs=[mx.arange(64).astype(mx.float32)],
        shape=(64,),
        grid=32,
    )
    quad = LANE // 4
    row, column = (quad & 4) + LANE // 2 % 4, (quad & 2) * 2 + LANE % 2 * 2
    np.testing.assert_array_equal(out[0::2], row * 8 + column)
    np.testing.assert_array_equal(out[1::2], row * 8 + column + 1)


def test_thread_positions_at_the_ragged_edges_of_a_grid():
    out, _ = metal(
        """uint3 p = thread_position_in_grid, t = threads_per_threadgroup;
        uint at = (p.z * 5 + p.y) * 7 + p.x;
        o[at] = float(threadgroup_position_in_grid.x * 10000 + t.x * 1000 + t.y * 100
            + thread_position_in_threadgroup.x * 10 + thread_index_in_threadgroup % 10)
            + (threads_per_grid.x == 7 && threads_per_simdgroup == 32 ? 0.0f : 0.5f);""",
        inputs=[mx.ones((8,))],
        shape=(2, 5, 7),
        grid=(7, 5, 2),
        threadgroup=(4, 2, 1),
    )
    _, y, x = np.meshgrid(*map(np.arange, (2, 5, 7)), indexing="ij")
    wide, high = np.where(x < 4, 4, 3), np.where(y < 4, 2, 1)
    index = (y % 2) * wide + x % 4
    expected = x // 4 * 10000 + wide * 1000 + high * 100 + x % 4 * 10 + index % 10
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, mx.uint32, mx.bool_, mx.uint8, mx.int64])
def test_strided_views_are_passed_with_their_strides(dtype):
    cache = (mx.arange(4 * 6 * 10).reshape(4, 6, 10) % 7).astype(dtype)
    view = cache[1:3, :4].swapaxes(1, 2)
    out, _ = metal(
        """uint3 p = thread_position_in_grid;
        o[(p.z * 10 + p.y) * 4 + p.x] = float(
            a[p.z * a_strides[0] + p.y * a_strides[1] + p.x * a_strides[2]]);""",
        inputs=[view],
        shape=(2, 10, 4),
        grid=(4, 10, 2),
        threadgroup=(4, 4, 1),
    )
    np.testing.assert_array_equal(out, np.array(view.astype(mx.float32)))


def test_rows_are_made_contiguous_when_asked():
    a = mx.arange(12).reshape(3, 4).astype(mx.float32)
    out, _ = metal(
        "uint i = thread_position_in_grid.x; o[i] = a[i];",
        inputs=[a.T],
        shape=(4, 3),
        ensure_row_contiguous=True,
    )
    np.testing.assert_array_equal(out, np.array(a.T))


def test_init_value_and_scalars():
    out, _ = metal(
        "uint i = thread_position_in_grid.x; if (i < uint(b)) o[i] += a[i];",
        inputs=[mx.ones((8,)), mx.array(3)],
        shape=(8,),
        init_value=5.0,
    )
    np.testing.assert_array_equal(out, [6, 6, 6, 5, 5, 5, 5, 5])


def test_what_is_not_written_is_nan():
    out, _ = metal(
        "uint i = thread_position_in_grid.x; if (i % 2) o[i] = a[i];",
        inputs=[mx.ones((8,))],
        shape=(8,),
        raises=False,
    )
    np.testing.assert_array_equal(np.isnan(out), np.arange(8) % 2 == 0)


def test_atomic_outputs():
    kernel = mx.fast.metal_kernel(
        name="total",
        input_names=["a"],
        output_names=["o"],
        source="""uint i = thread_position_in_grid.x;
        atomic_fetch_add_explicit(&o[i % 2], a[i], memory_order_relaxed);""",
        atomic_outputs=True,
    )

    def total(a):
        return kernel(
            inputs=[a],
            grid=(a.size, 1, 1),
            threadgroup=(16, 1, 1),
            output_shapes=[(2,)],
            output_dtypes=[mx.float32],
            init_value=0,
        )

    outputs, _ = emulate(total, mx.arange(100).astype(mx.float32))
    np.testing.assert_array_equal(outputs[0], [2450, 2500])


def test_several_kernels_with_operations_of_mlx_between():
    kernel = mx.fast.metal_kernel(
        name="twice",
        input_names=["a"],
        output_names=["o", "p"],
        source="uint i = thread_position_in_grid.x; o[i] = a[i] * 2.0f; p[i] = int(i);",
    )

    def twice(x):
        return kernel(
            inputs=[x],
            grid=(x.size, 1, 1),
            threadgroup=(16, 1, 1),
            output_shapes=[x.shape, x.shape],
            output_dtypes=[mx.float32, mx.int32],
        )

    with emulated() as report:
        first, index = twice(mx.arange(20).astype(mx.float32))
        second, _ = twice(mx.exp(first) + index)
        mx.eval(second)
    expected = 2 * (np.exp(2.0 * np.arange(20)) + np.arange(20))
    np.testing.assert_allclose(np.array(second), expected, rtol=5e-6)
    assert [launch.kernel for launch in report.launches] == ["twice", "twice"]
    with pytest.raises(Exception, match="No Metal"):  # outside, it is MLX's own again
        mx.eval(twice(mx.ones((4,))))


def test_lines_of_the_source_and_what_they_move():
    _, report = metal(
        REDUCE, inputs=[mx.ones((3, 64))], shape=(3,), template=[("T", mx.float32)], grid=96
    )
    launch = report.launches[0]
    lines = {(t.line, t.buffer, t.write): t.bytes for t in launch.lines if t.file == "trial.metal"}
    assert lines[8, "a", False] == 3 * 64 * 4
    assert lines[12, "partial", True] == 3 * 4
    assert lines[16, "partial", False] == 3 * 4
    assert launch.threadgroup_arrays == {"partial": 128}
    assert launch.threads == 32


def test_every_order_of_the_lanes_gives_the_same():
    outputs = [
        metal(
            REDUCE,
            inputs=[mx.arange(32).astype(mx.float32)[None] * 0.1],
            shape=(1,),
            template=[("T", mx.float32)],
            grid=32,
            seed=seed,
        )[0]
        for seed in range(5)
    ]
    assert all((out == outputs[0]).all() for out in outputs)


def test_templates_and_helpers_of_the_header():
    out, _ = metal(
        """uint i = thread_position_in_grid.x;
        T value = T(a[i]);
        if (FLIP) {
          add<N>(value, a);
        }
        o[i] = value;""",
        header="""
        constant float TABLE[3] = {1.0f, 10.0f, 100.0f};
        template <int N, typename T>
        METAL_FUNC void add(thread T& value, const device float* from) {
          value += T(TABLE[N] * from[0]);
        }
        """,
        inputs=[mx.ones((32,))],
        shape=(32,),
        dtype=mx.float16,
        template=[("T", mx.float16), ("N", 2), ("FLIP", True)],
    )
    np.testing.assert_array_equal(out, np.full(32, 101))


def test_threadgroup_declarations_of_every_form():
    out, report = metal(
        """uint i = thread_position_in_grid.x;
        constexpr int N = 4;
        threadgroup float s, t[2 * (N + 4)];
        threadgroup vec<half, 4> wide[8][2];
        threadgroup float* p = t;
        if (i < 16) p[i] = a[i];
        if (i == 0) s = 1.0f;
        wide[i / 4][0][i % 4] = half(a[i]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        o[i] = t[i % 16] + s + float(wide[i / 4][0].x);""",
        inputs=[mx.ones((32,))],
        shape=(32,),
    )
    np.testing.assert_array_equal(out, np.full(32, 3))
    assert report.launches[0].threadgroup_arrays == {"s": 4, "t": 64, "wide": 128}
