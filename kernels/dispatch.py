"""One function for attention; it chooses who computes it."""

import mlx.core as mx

from .checks import check_attention, check_quantized
from .fallback import fallback_attention
from .quantized_fallback import Quantized, quantized_fallback
from .spec import AttentionSpec


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    *,
    sinks: mx.array | None = None,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
    lse: bool = False,
) -> mx.array | tuple[mx.array, mx.array]:
    """Attention as `AttentionSpec` and `reference.attention_and_lse` define it.

    q [B, H, L, D]; k, v [B, K, S, D]; sinks, slopes [H] float32; starts, ends [B] int32. Returns
    [B, H, L, D] in q's dtype, with `lse` also the log-sum-exp, float32 [B, H, L].
    Raises ValueError when the shapes or types disagree with each other or with `spec`.
    """
    arrays = {"sinks": sinks, "slopes": slopes, "starts": starts, "ends": ends}
    check_attention(q, k, v, spec, **arrays)
    return fallback_attention(q, k, v, spec, **arrays, lse=lse)


def quantized_attention(
    q: mx.array,
    k: Quantized,
    v: Quantized,
    spec: AttentionSpec,
    *,
    bits: int,
    group_size: int,
    sinks: mx.array | None = None,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
    lse: bool = False,
) -> mx.array | tuple[mx.array, mx.array]:
    """`attention` over keys and values that `mx.quantize` packed along D (affine, 4 or 8 bits).

    k, v: words uint32 [B, K, S, D·bits/32], scales and biases [B, K, S, D/group_size]. They are
    never dequantized as a whole. Raises ValueError as `attention` does, and for a layout that
    `bits` and `group_size` do not describe.
    """
    arrays = {"sinks": sinks, "slopes": slopes, "starts": starts, "ends": ends}
    check_quantized(q, k, v, spec, bits=bits, group_size=group_size, **arrays)
    layout = {"bits": bits, "group_size": group_size}
    return quantized_fallback(q, k, v, spec, **layout, **arrays, lse=lse)
