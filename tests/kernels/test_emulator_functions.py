"""Metal's simdgroup, vector and math functions in the emulator against numpy."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import SKIP_REASON, find_clang
from emulator.trial import metal

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)


def lanes(expression, values, dtype=mx.float32):
    """`expression` of x, the values of 32 lanes, and i, the lane."""
    return metal(
        f"uint i = thread_index_in_simdgroup; auto x = a[i]; o[i] = {expression};",
        inputs=[values],
        shape=(32,),
        dtype=dtype,
    )[0]


NUMBERS = mx.array(np.random.default_rng(1).integers(-50, 50, 32).astype(np.float32))
VALUES = np.array(NUMBERS)
LANE = np.arange(32)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("simd_sum(x)", np.full(32, VALUES.sum())),
        ("simd_max(x)", np.full(32, VALUES.max())),
        ("simd_min(x)", np.full(32, VALUES.min())),
        ("simd_shuffle(x, ushort(31 - i))", VALUES[::-1]),
        ("simd_shuffle_xor(x, 5)", VALUES[LANE ^ 5]),
        ("simd_shuffle_down(x, 3)", np.where(LANE < 29, np.roll(VALUES, -3), VALUES)),
        ("simd_shuffle_up(x, 3)", np.where(LANE > 2, np.roll(VALUES, 3), VALUES)),
        ("simd_shuffle_rotate_down(x, 3)", np.roll(VALUES, -3)),
        ("simd_broadcast(x, 17)", np.full(32, VALUES[17])),
        ("simd_broadcast_first(x)", np.full(32, VALUES[0])),
        ("simd_prefix_inclusive_sum(x)", VALUES.cumsum()),
        ("simd_prefix_exclusive_sum(x)", VALUES.cumsum() - VALUES),
        ("quad_sum(x)", VALUES.reshape(8, 4).sum(1).repeat(4)),
        ("quad_max(x)", VALUES.reshape(8, 4).max(1).repeat(4)),
        ("quad_broadcast(x, 2)", VALUES[2::4].repeat(4)),
        ("simd_any(x > 1000.0f)", np.zeros(32)),
        ("simd_all(x < 1000.0f)", np.ones(32)),
        ("float(popcount(uint(ulong(simd_ballot(x > 0.0f)))))", np.full(32, (VALUES > 0).sum())),
        ("simd_is_first()", LANE == 0),
        ("simd_sum(float2(x, 1.0f)).y", np.full(32, 32)),
        ("simd_shuffle_xor(half(x), 1)", VALUES[LANE ^ 1]),
        ("float(simd_sum(int(x)))", np.full(32, VALUES.sum())),
    ],
)
def test_simdgroup_functions(expression, expected):
    np.testing.assert_array_equal(lanes(expression, NUMBERS), expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("float4(x, 2.0f, float2(3.0f, 4.0f)).w", np.full(32, 4)),
        ("float4(x).zw.y", VALUES),
        ("vec<float, 2>(x, 1.0f).yx.y", VALUES),
        ("dot(float3(x, 1.0f, 2.0f), float3(2.0f))", 2 * VALUES + 6),
        ("float(static_cast<half2>(float2(x, 0.0f)).x)", VALUES),
        ("max(x, 0.0f)", VALUES.clip(0)),
        ("clamp(x, -3.0f, 3.0f)", VALUES.clip(-3, 3)),
        ("select(x, 7.0f, x < 0.0f)", np.where(VALUES < 0, 7, VALUES)),
        ("float(as_type<uint>(x) >> 31)", VALUES < 0),
        ("fma(x, 2.0f, 1.0f)", 2 * VALUES + 1),
        ("metal::abs(x)", np.abs(VALUES)),
        ("sign(x)", np.sign(VALUES)),
        ("float(isinf(INFINITY) && isnan(NAN) && !isfinite(-INFINITY))", np.ones(32)),
        ("float(clz(uint(1)))", np.full(32, 31)),
        ("float(mulhi(0x80000000u, 4u))", np.full(32, 2)),
        ("1.0h + x", VALUES + 1),
        ("Limits<float>::min", np.full(32, -np.inf)),
        ("float(ceildiv(int(i), 4))", -(-LANE // 4)),
    ],
)
def test_vectors_and_math(expression, expected):
    np.testing.assert_array_equal(lanes(expression, NUMBERS), expected)


@pytest.mark.parametrize("name", ["exp2", "log2", "tanh", "rsqrt", "exp", "sqrt"])
@pytest.mark.parametrize("space", ["metal", "fast", "precise"])
def test_transcendental_functions(name, space):
    x = mx.array(np.linspace(0.1, 3, 32, dtype=np.float32))
    reference = {"rsqrt": lambda v: 1 / np.sqrt(v)}.get(name) or getattr(np, name)
    out = lanes(f"{space}::{name}(x)", x)
    np.testing.assert_allclose(out, reference(np.array(x, dtype=np.float64)), rtol=5e-7)
