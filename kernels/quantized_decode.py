"""Attention of few queries over keys and values in MLX's affine layout, on Metal."""

from typing import Unpack

import mlx.core as mx

from .arguments import SPEC_NAMES
from .checks import Arrays, Quantized
from .decode import HEADERS, OUTPUTS, launch_splits
from .source import metal_kernel
from .spec import AttentionSpec

_CACHE = ("k", "k_scales", "k_biases", "v", "v_scales", "v_biases")


def quantized_decode_attention(
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
    """See `dispatch.quantized_attention`; the arguments have been checked, and
    `decode.unsupported` said None.

    `decode.decode_attention`, its mask and its splits included, but for what is read: the words
    themselves, once, with the scales s and biases b of their groups. Codes c are never turned
    into keys and values, not even in registers::

        q·k = Σ s·Σ q·c + b·Σ q            Σ p·v = Σ (p·s)·c + Σ p·b
              groups                               keys       keys
    """
    inputs = ("q", *_CACHE, *SPEC_NAMES)
    kernel = metal_kernel("quantized_decode", inputs, OUTPUTS, headers=(*HEADERS, "affine"))
    template = [("BITS", bits), ("GROUP", group_size)]
    out, sums = launch_splits(kernel, q, [*k, *v], spec, k[0].shape[2], template, arrays)
    return (out, sums) if lse else out
