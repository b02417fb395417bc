"""Attention with every score written out, in numpy: what the fused operations are tested with."""

import numpy as np

from .spec import AttentionSpec


def attention_reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, spec: AttentionSpec, **arrays: np.ndarray
) -> np.ndarray:
    """The output of `attention_and_lse` alone."""
    return attention_and_lse(q, k, v, spec, **arrays)[0]


def attention_and_lse(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    spec: AttentionSpec,
    *,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """q [B, H, L, D]; k, v [B, K, S, D] → output [B, H, L, D], log-sum-exp [B, H, L].

    In order: scale, softcap, `bias` (added, [B or 1, H or 1, L or 1, S]), ALiBi (−slope·(p − j)
    with `slopes` [H], arXiv:2108.12409), mask.
    `sinks` [H] are logits of keys without a value that take part in the softmax and in the
    log-sum-exp (GPT-OSS, arXiv:2508.10925). `starts`, `ends` [B]: see `AttentionSpec`.
    """
    scores = masked_scores(q, k, spec, slopes=slopes, starts=starts, ends=ends, bias=bias)
    top = scores.max(axis=-1, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None])
    safe = np.where(np.isfinite(top), top, 0.0)[..., None]
    weights = np.exp(scores - safe)
    mass = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        mass = mass + np.exp(sinks[:, None, None] - safe)
    values = np.repeat(v, spec.heads // spec.kv_heads, axis=1)
    out = weights / np.where(mass == 0.0, 1.0, mass) @ values
    with np.errstate(divide="ignore"):
        return out, (np.log(mass) + safe)[..., 0]


def masked_scores(
    q: np.ndarray,
    k: np.ndarray,
    spec: AttentionSpec,
    *,
    slopes: np.ndarray | None = None,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Scores before the softmax [B, H, L, S]; −inf where a key is not seen."""
    batch, _, length, _ = q.shape
    total = k.shape[2]
    starts = np.zeros(batch, int) if starts is None else np.asarray(starts)
    ends = np.full(batch, total) if ends is None else np.asarray(ends)
    scores = q @ np.repeat(k, spec.heads // spec.kv_heads, axis=1).swapaxes(-1, -2) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * np.tanh(scores / spec.softcap)
    if bias is not None:
        scores = scores + bias
    keys = np.arange(total)
    rows = (ends[:, None] - length + np.arange(length))[..., None]  # [B, L, 1]: p
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (rows - keys)[:, None]
    seen = (keys >= starts[:, None, None]) & (keys < ends[:, None, None])
    if spec.causal:
        seen = seen & (keys <= rows)
    if spec.window is not None:
        seen = seen & (keys > rows - spec.window)
    return np.where(seen[:, None], scores, -np.inf)


def attention_statistics_reference(
    q: np.ndarray,
    k: np.ndarray,
    lse: np.ndarray,
    spec: AttentionSpec,
    *,
    top_k: int = 8,
    **arrays: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The fields of `statistics.Statistics`: mass, entropy, top_ids, top_weights."""
    scores = masked_scores(q, k, spec, **arrays)
    seen = np.isfinite(scores)
    logs = np.where(seen, scores - np.where(seen, lse[..., None], 0.0), -np.inf)
    weights = np.exp(logs)
    entropy = -(weights * np.where(weights > 0, logs, 0.0)).sum(axis=-1)
    order = np.argsort(-logs, axis=-1, kind="stable")[..., :top_k]
    best = np.take_along_axis(logs, order, axis=-1)
    missing = [(0, 0)] * 3 + [(0, top_k - order.shape[-1])]
    ids = np.pad(np.where(np.isfinite(best), order, -1), missing, constant_values=-1)
    return weights.sum(axis=2), entropy, ids, np.pad(np.exp(best), missing)
