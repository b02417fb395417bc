"""Attention statistics in MLX's own operations, for devices without Metal."""

import mlx.core as mx

from .fallback import masked_scores
from .spec import AttentionSpec

_SCORES = 1 << 20  # scores held at once, as long as one query's are no more


def statistics_fallback(
    q: mx.array,
    k: mx.array,
    lse: mx.array,
    spec: AttentionSpec,
    top_k: int,
    *,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """The fields of `statistics.Statistics`; the arguments have been checked."""
    batch, heads, length, _ = q.shape
    total = k.shape[2]
    arrays = {"slopes": slopes, "starts": starts, "ends": ends}
    keys = k.astype(mx.float32)[:, :, None].swapaxes(-1, -2)  # [B, K, 1, D, S]
    mass = mx.zeros((batch, heads, total))
    step = max(1, _SCORES // max(1, batch * heads * total))
    rows = []
    for at in range(0, length, step):
        # Each block waits for the one before, else MLX would be free to hold all their scores.
        part = mx.depends([q[:, :, at : at + step]], [mass, *(rows[-1] if rows else ())])[0]
        grouped = mx.unflatten(part.astype(mx.float32), 1, (spec.kv_heads, -1))
        products = (grouped @ keys).flatten(1, 2)  # [B, H, l, S]
        scores = masked_scores(products, spec, at - length, 0, total, **arrays)
        logs = mx.where(scores == -mx.inf, scores, scores - lse[:, :, at : at + step, None])
        weights = mx.exp(logs)
        mass = mass + weights.sum(axis=2)
        entropy = -(weights * mx.where(weights > 0, logs, 0.0)).sum(axis=-1)
        rows.append((entropy, *_top(logs, top_k)))
    entropies, ids, weights = (mx.concatenate(column, axis=2) for column in zip(*rows, strict=True))
    return mass, entropies, ids, weights


def _top(logs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and weights of the `count` largest of logs [B, H, l, S], −1 and 0 for −inf."""
    keys = mx.arange(logs.shape[-1])
    ids, weights = [], []
    for _ in range(count):
        best = mx.argmax(logs, axis=-1, keepdims=True)  # of equal ones the first
        log = mx.take_along_axis(logs, best, axis=-1)
        ids.append(mx.where(log == -mx.inf, -1, best.astype(mx.int32)))
        weights.append(mx.exp(log))
        logs = mx.where(keys == best, -mx.inf, logs)
    return mx.concatenate(ids, axis=-1), mx.concatenate(weights, axis=-1)
