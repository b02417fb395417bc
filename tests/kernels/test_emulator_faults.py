"""The emulator catches each kind of fault, and names the line."""

import mlx.core as mx
import pytest

from emulator import SKIP_REASON, KernelError, emulate, find_clang

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)

ONES = mx.ones((64,))


def run(body, *, inputs=(ONES,), size=64, grid=64, threadgroup=64, header="", **options):
    """One launch of `body` with inputs a, b, … and an output o of `size` floats."""
    names = "abcd"[: len(inputs)]
    kernel = mx.fast.metal_kernel(
        name="bad", input_names=list(names), output_names=["o"], source=body, header=header
    )

    def call(*arrays):
        return kernel(
            inputs=list(arrays),
            grid=(grid, 1, 1),
            threadgroup=(threadgroup, 1, 1),
            output_shapes=[(size,)],
            output_dtypes=[mx.float32],
        )

    return emulate(call, *inputs, **options)


def fault(body, **options):
    with pytest.raises(KernelError) as caught:
        run(body, **options)
    return caught.value


def lines(error, kind):
    return {finding.line for finding in error.findings if finding.kind == kind}


def test_good_kernel_has_no_findings():
    outputs, report = run("""uint i = thread_position_in_grid.x;
        threadgroup float t[64];
        t[i] = a[i] + 1.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        o[i] = t[63 - i];""")
    assert (outputs[0] == 2).all()
    assert report.findings == []


NO_BARRIER = """uint i = thread_position_in_grid.x;
    threadgroup float t[64];
    t[i] = a[i];
    {barrier}
    o[i] = t[{index}];"""


@pytest.mark.parametrize(
    "barrier",
    [
        "",
        "threadgroup_barrier(mem_flags::mem_none);",
        "threadgroup_barrier(mem_flags::mem_device);",
        "simdgroup_barrier(mem_flags::mem_threadgroup);",
        "simd_sum(1.0f);",
    ],
)
def test_missing_or_wrong_barrier_is_a_race(barrier):
    # Which of the two accesses comes second depends on the order of the lanes: either line, or
    # a read before the write.
    error = fault(NO_BARRIER.format(barrier=barrier, index="63 - i"))
    assert "race" in error.kinds
    assert lines(error, "race") <= {3, 5}


def test_simdgroup_barrier_orders_one_simdgroup():
    run(NO_BARRIER.format(barrier="simdgroup_barrier(mem_flags::mem_threadgroup);", index="i ^ 1"))
    error = fault(NO_BARRIER.format(barrier="", index="i ^ 1"))
    assert error.kinds <= {"race", "uninitialised"}


@pytest.mark.parametrize("seed", range(8))
def test_overwriting_before_all_have_read_is_a_race_in_every_order(seed):
    error = fault(
        """uint i = thread_position_in_grid.x;
    threadgroup float t[64];
    t[i] = a[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float x = t[63 - i];
    t[i] = x;
    o[i] = x;""",
        seed=seed,
    )
    assert error.kinds == {"race"}


def test_two_threads_writing_one_output_is_a_race():
    error = fault("o[thread_position_in_grid.x / 2] = a[0];", size=32)
    assert error.kinds == {"race"}


def test_two_threadgroups_writing_one_output_is_a_race_whatever_the_barriers():
    error = fault(
        """threadgroup_barrier(mem_flags::mem_device);
        o[thread_position_in_threadgroup.x] = a[0];""",
        size=32,
        threadgroup=32,
    )
    assert error.kinds == {"race"}


@pytest.mark.parametrize("index", ["i + 1", "i + 100000", "int(i) - 1"])
def test_reading_outside_an_input(index):
    error = fault(f"uint i = thread_position_in_grid.x;\no[i] = a[{index}];")
    assert error.kinds == {"bounds"}
    assert lines(error, "bounds") == {2}
    assert "read of a" in str(error)


def test_writing_outside_an_output():
    error = fault("uint i = thread_position_in_grid.x;\no[i + 1] = a[i];")
    assert error.kinds == {"bounds"}
    assert "write of o" in str(error)


def test_running_off_threadgroup_memory_does_not_reach_its_neighbour():
    error = fault("""uint i = thread_position_in_grid.x;
        threadgroup float s[64];
        threadgroup float t[64];
        s[i] = t[i] = a[i];
        threadgroup float* p = s;
        o[i] = p[i + 1];""")
    assert "bounds" in error.kinds
    assert "read of s" in str(error)


def test_index_outside_an_array_of_a_thread():
    error = fault("""uint i = thread_position_in_grid.x;
        float x[4];
        for (int k = 0; k < 4; k++) x[k] = a[k];
        o[i] = x[i];""")
    assert error.kinds == {"bounds"}
    assert lines(error, "bounds") == {4}


def test_reading_between_the_rows_of_a_strided_view():
    kernel = mx.fast.metal_kernel(
        name="rows",
        input_names=["a"],
        output_names=["o"],
        source="uint i = thread_position_in_grid.x; o[i] = a[i];",
        ensure_row_contiguous=False,
    )
    cache = mx.ones((4, 16, 8))

    def call(cache):
        return kernel(
            inputs=[cache[:, :3]],
            grid=(64, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(64,)],
            output_dtypes=[mx.float32],
        )

    with pytest.raises(KernelError, match="read of a at element"):
        emulate(call, cache)


def test_reading_threadgroup_memory_before_any_write():
    error = fault("""uint i = thread_position_in_grid.x;
        threadgroup float t[64];
        if (i < 32) t[i] = a[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        o[i] = t[i];""")
    assert error.kinds == {"uninitialised"}
    assert lines(error, "uninitialised") == {5}


def test_threadgroup_memory_does_not_outlive_its_threadgroup():
    error = fault(
        """uint i = thread_position_in_grid.x;
        threadgroup float t[1];
        if (i == {0}) t[0] = a[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        o[i] = t[0];""".replace("{0}", "0"),
        threadgroup=32,
    )
    assert error.kinds == {"uninitialised"}


def test_reading_an_output_before_any_write():
    error = fault("uint i = thread_position_in_grid.x;\no[i] += a[i];")
    assert error.kinds == {"uninitialised"}


def test_unwritten_output():
    error = fault("uint i = thread_position_in_grid.x; if (i != 7) o[i] = a[i];")
    assert error.kinds == {"unwritten"}
    assert "1 elements of o" in str(error)
    assert "(7,)" in str(error)


def test_writing_an_input():
    error = fault(
        "uint i = thread_position_in_grid.x; ((device float*)a)[i] = 0.0f; o[i] = a[i];",
        checked=False,
    )
    assert error.kinds == {"read-only"}


DIVERGENT = """uint i = thread_position_in_grid.x;
    float x = a[i];
    if (i {condition}) {{
      {stop}
    }}
    {after}
    o[i] = x;"""


@pytest.mark.parametrize(
    ("condition", "stop", "after"),
    [
        ("< 7", "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
        ("< 32", "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
        ("< 7", "x = simd_sum(x);", "threadgroup_barrier(mem_flags::mem_threadgroup);"),
        ("< 7", "x = simd_sum(x);", "x = simd_max(x);"),
        ("< 7", "x = simd_sum(x);", "x = simd_sum(x);"),
    ],
)
def test_divergent_barriers_and_collectives(condition, stop, after):
    error = fault(DIVERGENT.format(condition=condition, stop=stop, after=after))
    assert "divergent" in error.kinds
    assert lines(error, "divergent") <= {4, 6}


def test_collective_in_a_loop_of_uneven_length():
    error = fault("""uint i = thread_position_in_grid.x;
        float x = a[i];
        for (uint k = 0; k < i; k++) x = simd_max(x);
        x = simd_sum(x);
        o[i] = x;""")
    assert "divergent" in error.kinds


def test_shuffling_from_a_thread_that_is_not_there():
    error = fault("uint i = thread_position_in_grid.x; o[i] = simd_shuffle(a[i], 20);", grid=16)
    assert "inactive" in error.kinds


def test_endless_loop_is_stopped():
    error = fault(
        """uint i = thread_position_in_grid.x;
        uint k = 1;
        while (k != 0) k = k * 3 | 1;
        o[i] = k;""",
        timeout=0.2,
    )
    assert error.kinds == {"watchdog"}


def test_division_by_zero_and_wild_pointers_do_not_take_the_process_down():
    error = fault("uint i = thread_position_in_grid.x; o[i] = int(i) / (int(i) - int(i));")
    assert error.kinds == {"crash"}, str(error)
    error = fault(
        "uint i = thread_position_in_grid.x; o[i] = *(const device float*)(ulong)(i * 8);",
        checked=False,
    )
    assert error.kinds == {"crash"}, str(error)


def test_more_threadgroup_memory_than_there_is():
    error = fault("""uint i = thread_position_in_grid.x;
        threadgroup float t[8193];
        t[i] = a[i];
        o[i] = t[i];""")
    assert error.kinds == {"memory-limit"}


def test_misaligned_vector_access():
    error = fault(
        "uint i = thread_position_in_grid.x; o[i] = ((const device float2*)(a + 1))[0].x;"
    )
    assert error.kinds == {"misaligned"}


def test_too_many_threads():
    assert fault("o[0] = a[0];", threadgroup=2048, grid=2048).kinds == {"limit"}
    assert fault("o[0] = a[0];", max_threads=32).kinds == {"limit"}


def test_uninitialised_variable_of_a_thread():
    error = fault("uint i = thread_position_in_grid.x; float x; x += a[i]; o[i] = x;")
    assert error.kinds == {"type"}


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ("threadgroup float t[1]; t[0] = 0.0f; device float* p = t; o[0] = p[0];", ""),
        (
            "threadgroup float t[1]; t[0] = 0.0f; o[0] = f(t);",
            "inline float f(const device float* p) { return p[0]; }",
        ),
        ("o[0] = f();", "inline float f() { threadgroup float t[1]; t[0] = 0.0f; return t[0]; }"),
        ("o[0] = CAP;", "const float CAP = 2.0f;"),
        ("half h = a[0]; o[0] = h;", ""),
        ("a[0] = 0.0f; o[0] = a[0];", ""),
        ("o[0] = no_such_thing(a[0]);", ""),
        ("o[0] = max(a[0], 1);", ""),
    ],
    ids=[
        "threadgroup-to-device",
        "argument-space",
        "threadgroup-in-function",
        "global-not-constant",
        "implicit-half",
        "const-input",
        "unknown-name",
        "mixed-types",
    ],
)
def test_type_checks(body, header):
    assert fault(body, header=header).kinds == {"type"}


@pytest.mark.parametrize(
    ("body", "header", "said"),
    [
        ("o[0] = a[0] * 2.0;", "", "`2.0` is a double"),
        ("o[0] = a[0] * 1e-3;", "", "is a double"),
        ("double x = 1.0f; o[0] = x;", "", "`double`"),
        ("auto f = [](float x) { return x; }; o[0] = f(a[0]);", "", "a lambda"),
        ("o[0] = f(3);", "inline float f(int n) { return n ? f(n - 1) : 0.0f; }", "recursion"),
        (
            "o[0] = f(3);",
            "float g(int n);\ninline float f(int n) { return g(n); }\n"
            "inline float g(int n) { return n ? f(n - 1) : 0.0f; }",
            "recursion",
        ),
        ("end: goto end;", "", "`goto`"),
        ("o[0] = 0.0f;", "struct S { virtual float f() { return 0.0f; } };", "`virtual`"),
        (
            "float x = a[0]; f(x); o[0] = x;",
            "inline void f(float& x) { x += 1.0f; }",
            "names no address space",
        ),
    ],
)
def test_lint(body, header, said):
    error = fault(body, header=header)
    assert error.kinds == {"lint"}
    assert said in str(error)


def test_findings_are_collected_when_asked():
    _, report = run("uint i = thread_position_in_grid.x; if (i) o[i] = a[i];", raises=False)
    assert [finding.kind for finding in report.findings] == ["unwritten"]
