"""Attention over keys and values in MLX's affine layout, in MLX's own operations.

Neither the cache nor the scores are ever held whole: a block of keys at a time meets a block of
queries, with the running softmax of Milakov and Gimelshein (arXiv:1805.02867) between them.
"""

from typing import Unpack

import mlx.core as mx

from .checks import Arrays, Quantized
from .fallback import masked_scores
from .spec import AttentionSpec

_QUERIES, _KEYS = 64, 1024  # rows and columns of the scores that are held at once
_NEG = -1e30  # the running maximum before any key was seen


def quantized_fallback(
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
    """See `dispatch.quantized_attention`; the arguments have been checked."""
    layout = {"bits": bits, "group_size": group_size}
    blocks = [
        _rows(q[:, :, at : at + _QUERIES], k, v, spec, at - q.shape[2], layout, **arrays)
        for at in range(0, q.shape[2], _QUERIES)
    ]
    out = mx.concatenate([block[0] for block in blocks], axis=2)
    return (out, mx.concatenate([block[1] for block in blocks], axis=2)) if lse else out


def _rows(
    q: mx.array,
    k: Quantized,
    v: Quantized,
    spec: AttentionSpec,
    from_end: int,
    layout: dict[str, int],
    *,
    sinks: mx.array | None = None,
    **arrays: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Output and log-sum-exp of queries [B, H, l, D]; `from_end` is the first one's p − S."""
    batch, heads, length, _ = q.shape
    total = k[0].shape[2]
    grouped = mx.unflatten(q.astype(mx.float32), 1, (spec.kv_heads, -1)).flatten(2, 3)
    top = mx.full((batch, heads, length, 1), _NEG)
    mass, out = mx.zeros_like(top), mx.zeros(q.shape)
    if sinks is not None:
        top, mass = mx.broadcast_to(sinks[:, None, None], top.shape), mx.ones_like(top)
    ragged = arrays.get("ends") is not None
    for first, last in _key_blocks(spec, total, total + from_end, length, ragged):
        # Each block waits for the one before, else MLX would be free to hold all of them.
        parts = [part[:, :, first:last] for part in (*k, *v)]
        parts = mx.depends(parts, [out, mass])
        products = mx.quantized_matmul(grouped, *parts[:3], transpose=True, **layout)
        products = mx.unflatten(products, 2, (-1, length)).flatten(1, 2)  # [B, H, l, s]
        scores = masked_scores(products, spec, from_end, first, total, **arrays)
        new = mx.maximum(top, scores.max(axis=-1, keepdims=True))
        weights, kept = mx.exp(scores - new), mx.exp(top - new)
        top, mass = new, mass * kept + weights.sum(axis=-1, keepdims=True)
        weights = mx.unflatten(weights, 1, (spec.kv_heads, -1)).flatten(2, 3)  # [B, K, G·l, s]
        added = mx.quantized_matmul(weights, *parts[3:], transpose=False, **layout)
        out = out * kept + mx.unflatten(added, 2, (-1, length)).flatten(1, 2)
    out = out / mx.where(mass == 0, 1.0, mass)
    return out.astype(q.dtype), (mx.log(mass) + top)[..., 0]


def _key_blocks(
    spec: AttentionSpec, total: int, at: int, length: int, ragged: bool
) -> list[tuple[int, int]]:
    """Ranges of keys that one of the `length` queries from position `at` on may see."""
    first, last = 0, total
    if spec.causal and not ragged:
        last = max(min(at + length, total), 0)
        if spec.window is not None:
            first = max(at - spec.window + 1, 0)
    return [(start, min(start + _KEYS, last)) for start in range(first, last, _KEYS)]
