"""Each kernel on a real GPU, against the float64 reference: what the emulator cannot vouch for."""

import mlx.core as mx
import pytest

from pippin.apps.attention_calls import CALLS
from pippin.apps.bench_kernels import bench_kernels
from pippin.kernels.decode import decode_attention
from pippin.kernels.dispatch import attention, has_metal
from pippin.kernels.prefill import prefill_attention, unsupported
from pippin.kernels.quantized_decode import quantized_decode_attention
from pippin.kernels.quantized_prefill import quantized_prefill_attention
from pippin.kernels.spec import AttentionSpec
from pippin.kernels.statistics import metal_statistics
from support.attention_cases import (
    TOLERANCE,
    AttentionCase,
    assert_attention,
    assert_lse,
    build,
    build_quantized,
)
from support.statistics_checks import assert_statistics, problem_of

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(not has_metal(), reason="not run: this needs a Mac's GPU"),
]
DTYPES = list(TOLERANCE)
FEATURES = {"sinks": True, "slopes": True, "starts": (0, 40), "ends": (700, 533), "margin": 3}


def full_spec(head_dim):
    return AttentionSpec(8, 2, head_dim, head_dim**-0.5, window=130, softcap=2.0)


SERVED = [
    (kernel, length, head_dim, dtype)
    for kernel, length in ((decode_attention, 3), (prefill_attention, 150))
    for head_dim in (64, 80, 96, 128, 192, 256)
    for dtype in DTYPES
    if length == 3 or not unsupported(full_spec(head_dim), dtype, head_dim, length, 700)
]


@pytest.mark.parametrize(
    ("kernel", "length", "head_dim", "dtype"),
    SERVED,
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_every_feature(kernel, length, head_dim, dtype):
    spec = full_spec(head_dim)
    case = AttentionCase(spec, 2, length, 700, **FEATURES)
    inputs = build(case, dtype)
    out, lse = kernel(inputs.q, inputs.k, inputs.v, spec, **inputs.arrays, lse=True)
    wanted = inputs.reference(spec)
    assert_attention(out, wanted[0])
    assert_lse(lse, wanted[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 64), (8, 128)])
@pytest.mark.parametrize(
    ("kernel", "length"),
    [(quantized_decode_attention, 3), (quantized_prefill_attention, 150)],
    ids=["decode", "tile"],
)
def test_packed_caches(kernel, length, bits, group_size, dtype):
    spec = full_spec(128)
    inputs = build_quantized(
        AttentionCase(spec, 2, length, 700, **FEATURES), dtype, bits, group_size
    )
    out = kernel(
        inputs.q, inputs.k, inputs.v, spec, bits=bits, group_size=group_size, **inputs.arrays
    )
    assert_attention(out, inputs.reference(spec)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics(dtype):
    case = AttentionCase(full_spec(64), 2, 90, 700, **FEATURES)
    problem = problem_of(case, dtype)
    got = metal_statistics(
        problem.inputs.q, problem.inputs.k, problem.lse, case.spec, 8, **problem.arrays
    )
    assert_statistics(got, problem, 8)


@pytest.mark.parametrize("length", [1, 12, 150])
@pytest.mark.parametrize("window", [None, 130])
def test_the_dispatched_path(length, window):
    """Whoever the table chooses on this device is right."""
    case = AttentionCase(AttentionSpec(8, 2, 64, 0.125, window=window), 2, length, 700)
    inputs = build(case, mx.float16)
    out = attention(inputs.q, inputs.k, inputs.v, case.spec)
    assert_attention(out, inputs.reference(case.spec)[0])


def test_kernels_and_mlx_agree_at_the_sizes_of_the_benchmark():
    timings = bench_kernels(CALLS, rounds=1)
    assert len(timings) > 15
    assert all(timing.difference < 0.02 for timing in timings)  # float16, two ways of rounding
