"""Attention over packed keys and values, in MLX's operations, against the float64 reference."""

import gc
import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.kernels import quantized_fallback as module
from pippin.kernels.dispatch import quantized_attention
from pippin.kernels.quantized_fallback import quantized_fallback
from pippin.kernels.reference import attention_and_lse
from pippin.kernels.spec import AttentionSpec
from support.attention_cases import assert_attention, assert_lse, attention_cases, build


def packed(k: np.ndarray, dtype: mx.Dtype, layout: dict[str, int]):
    """(words, scales, biases) of k [B, K, S, D], and what they stand for in float64."""
    parts = mx.quantize(mx.array(k.astype(np.float32)).astype(dtype), **layout)
    wide = [part.astype(mx.float32) for part in parts[1:]]
    return parts, np.array(mx.dequantize(parts[0], *wide, **layout), np.float64)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@settings(max_examples=25, deadline=None)
@given(
    case=attention_cases(head_dim=128, slopes=True) | attention_cases(head_dim=64, softcap=20.0),
    bits=st.sampled_from([4, 8]),
    group_size=st.sampled_from([32, 64, 128]),
    blocks=st.sampled_from([(8, 16), (5, 7), (64, 1024)]),
)
def test_equals_the_reference(dtype, case, bits, group_size, blocks):
    spec = case.spec
    layout = {"bits": bits, "group_size": min(group_size, spec.head_dim)}
    inputs = build(case, dtype)
    k, wide_k = packed(inputs.wide[1], dtype, layout)
    v, wide_v = packed(inputs.wide[2], dtype, layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_QUERIES", blocks[0])
        patch.setattr(module, "_KEYS", blocks[1])
        out, lse = quantized_fallback(inputs.q, k, v, spec, **layout, **inputs.arrays, lse=True)
    given_ = {name: np.array(array) for name, array in inputs.arrays.items()}
    wanted, wanted_lse = attention_and_lse(inputs.wide[0], wide_k, wide_v, spec, **given_)
    assert out.dtype == dtype
    assert_attention(out, wanted, slack=2)  # MLX multiplies, and rounds, group by group
    assert_lse(lse, wanted_lse)


@pytest.mark.parametrize(("length", "total", "part"), [(1, 65536, 64), (96, 16384, 2)])
def test_extra_memory_is_a_part_of_what_the_cache_would_be_in_float32(length, total, part):
    layout = {"bits": 4, "group_size": 64}
    spec = AttentionSpec(8, 4, 64, 0.125)
    shape = (1, 4, total, 64)
    q = mx.random.normal((1, 8, length, 64))
    k, v = (mx.quantize(mx.random.normal(shape), **layout) for _ in "kv")
    mx.eval(q, k, v)
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(quantized_fallback(q, k, v, spec, **layout))
    assert mx.get_peak_memory() - before <= 2 * 4 * math.prod(shape) / part


SPEC = AttentionSpec(4, 2, 64, 0.125)
LAYOUT = {"bits": 4, "group_size": 64}


def problem(**changes):
    """q, k, v that fit SPEC and LAYOUT, some of them exchanged."""
    k = mx.quantize(mx.ones((1, 2, 5, 64)), **LAYOUT)
    return {"q": mx.ones((1, 4, 3, 64)), "k": k, "v": k, **changes}


@pytest.mark.parametrize(
    ("changes", "layout", "said"),
    [
        ({"q": mx.ones((4, 3, 64))}, {}, "does not fit"),
        ({"q": mx.ones((1, 3, 3, 64))}, {}, "does not fit"),
        ({"q": mx.ones((1, 4, 3, 64), mx.int32)}, {}, "float type"),
        ({"q": mx.ones((2, 4, 3, 64))}, {}, "quantized k is"),
        ({"v": mx.quantize(mx.ones((1, 2, 4, 64)), **LAYOUT)}, {}, "quantized v is"),
        ({"k": (mx.ones((1, 2, 5, 64)),) * 3}, {}, "quantized k is"),
        ({}, {"group_size": 32}, "groups of 32 need"),
        ({}, {"bits": 8}, "8 bits in groups of 64 need"),
        ({}, {"bits": 3}, "4 or 8 bits"),
        ({}, {"group_size": 48}, "group 48"),
        ({}, {"group_size": 128}, "64 values does not divide"),
        ({"ends": mx.array([3])[:, None]}, {}, "ends is"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_launch(changes, layout, said):
    with pytest.raises(ValueError, match=said) as error:
        quantized_attention(spec=SPEC, **problem(**changes), **{**LAYOUT, **layout})
    assert "\n" not in str(error.value)
