"""Attention of many queries over keys and values in MLX's affine layout, on Metal."""

from typing import Unpack

import mlx.core as mx

from . import prefill
from .arguments import SPEC_NAMES
from .checks import Arrays, Quantized
from .source import metal_kernel
from .spec import AttentionSpec

_CACHE = ("k", "k_scales", "k_biases", "v", "v_scales", "v_biases")


def quantized_prefill_attention(
    q: mx.array,
    k: Quantized,
    v: Quantized,
    spec: AttentionSpec,
    *,
    bits: int,
    group_size: int,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """See `dispatch.quantized_attention`; the arguments have been checked.

    `prefill.prefill_attention`, its mask and its tiles included, but for where a block comes from:
    each is dequantized, in q's type, on its way into threadgroup memory, and nowhere else.
    """
    kernel = metal_kernel(
        "quantized_prefill",
        ("q", *_CACHE, *SPEC_NAMES),
        ("out", "lse"),
        body="prefill",
        headers=prefill.HEADERS,
        defines=("QUANTIZED",),
    )
    template = [("BITS", bits), ("GROUP", group_size)]
    out, sums = prefill.launch_tiles(kernel, q, [*k, *v], spec, template, arrays)
    return (out, sums) if lse else out
