"""Attention with every score written out, in numpy: what the fused operations are tested with."""

import numpy as np

from .spec import AttentionSpec


def attention_reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, spec: AttentionSpec
) -> np.ndarray:
    """Attention with the scores written out: q [B, H, L, D]; k, v [B, K, S, D] → [B, H, L, D]."""
    group = spec.heads // spec.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)  # [B, H, S, D]
    scores = q @ k.swapaxes(-1, -2) * spec.scale  # [B, H, L, S]
    length, total = scores.shape[-2:]
    if spec.causal:
        seen = np.tri(length, total, total - length, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    mass = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(mass == 0.0, 1.0, mass) @ v
