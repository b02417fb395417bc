"""Attention in MLX's own operations, with the semantics of our kernels, for devices without Metal.

Scores are held for a block of queries at a time, never L×S.
"""

from typing import Unpack

import mlx.core as mx

from .checks import Arrays
from .spec import AttentionSpec

_BLOCK = 256  # queries whose scores are held at once


def fallback_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    *,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """See `dispatch.attention`; the arguments have been checked."""
    length = q.shape[2]
    blocks = [
        _block(q[:, :, at : at + _BLOCK], k, v, spec, at - length, **arrays)
        for at in range(0, length, _BLOCK)
    ]
    out = mx.concatenate([block[0] for block in blocks], axis=2)
    return (out, mx.concatenate([block[1] for block in blocks], axis=2)) if lse else out


def _block(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    from_end: int,
    *,
    sinks: mx.array | None = None,
    **arrays: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Output and log-sum-exp of queries [B, H, l, D]; `from_end` is the first one's p − S."""
    grouped = mx.unflatten(q.astype(mx.float32), 1, (spec.kv_heads, -1))  # [B, K, G, l, D]
    products = grouped @ k.astype(mx.float32)[:, :, None].swapaxes(-1, -2)
    scores = masked_scores(products.flatten(1, 2), spec, from_end, 0, k.shape[2], **arrays)
    return _softmax_values(scores, v, sinks, q.dtype)


def masked_scores(
    products: mx.array,
    spec: AttentionSpec,
    from_end: int,
    first: int,
    total: int,
    *,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
) -> mx.array:
    """q·k [B, H, l, s] → scores before the softmax; −inf where a key is not seen.

    The first of the l queries stands `from_end` before the end, the first of the s keys is key
    `first` of the `total` S.
    """
    batch, _, length, keys = products.shape
    scores = products * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * mx.tanh(scores / spec.softcap)
    end = mx.full((batch,), total, mx.int32) if ends is None else ends
    key = first + mx.arange(keys)
    at = (end[:, None] + from_end + mx.arange(length))[..., None]  # [B, l, 1]: p
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (at - key)[:, None]
    seen = key < end[:, None, None]
    if starts is not None:
        seen = seen & (key >= starts[:, None, None])
    if spec.causal:
        seen = seen & (key <= at)
    if spec.window is not None:
        seen = seen & (key > at - spec.window)
    return mx.where(seen[:, None], scores, -mx.inf)


def _softmax_values(
    scores: mx.array, v: mx.array, sinks: mx.array | None, dtype: mx.Dtype
) -> tuple[mx.array, mx.array]:
    """scores [B, H, l, S], v [B, K, S, D] → output [B, H, l, D], log-sum-exp [B, H, l]."""
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = mx.maximum(top, sinks[:, None, None])
    safe = mx.where(mx.isinf(top), 0.0, top)
    weights = mx.exp(scores - safe)
    mass = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        mass = mass + mx.exp(sinks[:, None, None] - safe)
    weights = weights / mx.where(mass == 0, 1.0, mass)
    grouped = mx.unflatten(weights, 1, (v.shape[1], -1))  # [B, K, G, l, S]
    out = grouped @ v.astype(mx.float32)[:, :, None]
    return out.flatten(1, 2).astype(dtype), (mx.log(mass) + safe)[..., 0]
