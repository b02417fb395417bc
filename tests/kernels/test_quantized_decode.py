"""The decode kernel on quantized keys and values, run by the emulator."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, emulated, find_clang
from pippin.kernels.quantized_decode import quantized_decode_attention
from pippin.kernels.reference import attention_and_lse
from pippin.kernels.spec import AttentionSpec
from support.attention_cases import (
    AttentionCase,
    assert_attention,
    attention_cases,
    build_quantized,
)
from support.decode_checks import check_decode, check_quantized_decode, moved

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
GROUPED = AttentionSpec(16, 2, 64, 0.125)
LAYOUTS = [
    (head_dim, bits, group_size)
    for head_dim in (64, 96, 128, 192, 256)
    for bits in (4, 8)
    for group_size in (32, 64, 128)
    if head_dim % group_size == 0
]


@st.composite
def quantized_cases(draw):
    """Any shape of up to 16 queries, any feature; S up to several splits."""
    return draw(
        attention_cases(
            head_dim=64,
            softcap=draw(st.none() | st.sampled_from([1.5, 30.0])),
            slopes=draw(st.booleans()),
            max_length=16,
            max_total=draw(st.sampled_from([40, 300, 700])),
        )
    )


@pytest.mark.parametrize(
    ("dtype", "bits", "group_size"),
    [(mx.float32, 4, 32), (mx.float32, 8, 64), (mx.float16, 4, 64), (mx.bfloat16, 8, 32)],
    ids=str,
)
@settings(max_examples=25, deadline=None)
@given(case=quantized_cases())
def test_every_type_at_any_shape(dtype, bits, group_size, case):
    """Right against the dequantized cache in float64, and each word read once for all rows."""
    check_quantized_decode(case, dtype, bits, group_size)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("heads", "length", "total", "window", "dtype"),
    [(6, 2, 83, 37, mx.float16), (16, 3, 530, None, mx.float32)],
    ids=str,
)
def test_every_layout_with_every_feature(layout, heads, length, total, window, dtype):
    head_dim, bits, group_size = layout
    spec = AttentionSpec(heads, 2, head_dim, head_dim**-0.5, window=window, softcap=2.0)
    features = {"sinks": True, "slopes": True, "margin": 3}
    ragged = {"starts": (0, 30), "ends": (total, 71)}
    case = AttentionCase(spec, 2, length, total, **features, **ragged)
    check_quantized_decode(case, dtype, bits, group_size)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_of_float32(bits, dtype):
    case = AttentionCase(GROUPED, 2, 3, 70, starts=(0, 5), margin=1)
    check_quantized_decode(case, dtype, bits, 32, factors=mx.float32)


@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(AttentionSpec(1, 1, 64, 0.125), 1, 1, 1),
        AttentionCase(GROUPED, 1, 16, 1),
        AttentionCase(GROUPED, 1, 1, 2500),
        AttentionCase(AttentionSpec(16, 1, 64, 0.125), 1, 16, 40),
        AttentionCase(AttentionSpec(16, 2, 64, 0.125, window=1), 1, 5, 70),
        AttentionCase(AttentionSpec(16, 2, 64, 0.125, causal=False), 1, 16, 70),
        AttentionCase(GROUPED, 5, 9, 40, starts=(0, 7, 39, 40, 20), ends=(40, 7, 40, 40, 33)),
    ],
    ids=lambda case: f"H{case.spec.heads}L{case.length}S{case.total}W{case.spec.window}",
)
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32)])
def test_named_shapes(case, bits, group_size):
    check_quantized_decode(case, mx.float32, bits, group_size)


def test_a_cache_of_4_bits_moves_its_share():
    """A quarter of the half-precision bytes and the factors, an eighth on top with groups of 32."""
    case = AttentionCase(GROUPED, 1, 2, 600)
    plain = moved(check_decode(case, mx.float16))
    for bits, group_size in ((4, 32), (4, 64), (8, 64)):
        launch = check_quantized_decode(case, mx.float16, bits, group_size)
        found = moved(launch)
        for name in "kv":
            assert found[name] == plain[name] * bits // 16
            assert (
                found[f"{name}_scales"] + found[f"{name}_biases"] == plain[name] * 2 // group_size
            )
            assert launch.traffic[name].unique_read == found[name]


def test_the_cache_is_never_dequantized_to_memory():
    """What is written is the output, or the parts of it that the splits leave."""
    for total in (200, 600):
        launch = check_quantized_decode(AttentionCase(GROUPED, 1, 4, total), mx.float16, 4, 64)
        written = {name for name, traffic in launch.traffic.items() if traffic.written}
        assert written == {"out", "stats"}
        assert set(launch.threadgroup_arrays) == {"queries", "exchange", "tops"}


@pytest.mark.parametrize("total", [70, 600])
def test_layouts_in_memory_change_nothing(total):
    """Tokens before heads, every second token, one sequence's values for all: the same bits."""
    rng = np.random.default_rng(0)
    layout = {"bits": 4, "group_size": 32}
    k = mx.quantize(mx.array(rng.standard_normal((2, 2 * total, 2, 64)).astype("f4")), 32, 4)
    v = mx.quantize(mx.array(rng.standard_normal((1, 2, total, 64)).astype("f4")), 32, 4)
    k = tuple(part[:, ::2].swapaxes(1, 2) for part in k)
    v = tuple(mx.broadcast_to(part, (2, *part.shape[1:])) for part in v)
    q = mx.array(rng.standard_normal((2, 16, 5, 64)).astype("f4"))
    copies = [tuple(map(mx.contiguous, parts)) for parts in (k, v)]
    with emulated():
        out = quantized_decode_attention(q, k, v, GROUPED, **layout)
        copied = quantized_decode_attention(q, *copies, GROUPED, **layout)
    assert mx.array_equal(out, copied)
    wide = [np.array(mx.dequantize(*parts, 32, 4), np.float64) for parts in copies]
    assert_attention(out, attention_and_lse(np.array(q, np.float64), *wide, GROUPED)[0])


def test_a_mean_of_many_values_is_as_exact_as_any():
    """It is small beside the values; codes that are not centred would round by far more."""
    case = AttentionCase(AttentionSpec(16, 1, 256, 0.0625, causal=False), 1, 4, 1200)
    check_quantized_decode(case, mx.float32, 4, 128)


def test_every_order_of_the_threads_gives_the_same_bits():
    inputs = build_quantized(AttentionCase(GROUPED, 2, 4, 600), mx.float16, 4, 64)
    outs = []
    for seed in range(4):
        with emulated(seed=seed):
            outs.append(
                quantized_decode_attention(
                    inputs.q, inputs.k, inputs.v, GROUPED, bits=4, group_size=64
                )
            )
    assert all(mx.array_equal(out, outs[0]) for out in outs)
