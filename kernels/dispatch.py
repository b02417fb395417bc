"""One function for attention; it chooses who computes it.

MLX's own fused operation serves plain causal attention well, so it is what runs.
"""

import mlx.core as mx

from .spec import AttentionSpec


def attention(q: mx.array, k: mx.array, v: mx.array, spec: AttentionSpec) -> mx.array:
    """Softmax(q·kᵀ·scale + mask)·v, with the mask of `AttentionSpec`.

    q [B, H, L, D]; k, v [B, K, S, D]; returns [B, H, L, D] in q's dtype.
    Raises ValueError when the shapes disagree with each other or with `spec`.
    """
    _check(q, k, v, spec)
    query_length, key_length = q.shape[2], k.shape[2]
    if spec.causal and query_length > key_length:
        # MLX gives NaN for the rows that see no key; they are 0 by definition.
        hidden = query_length - key_length
        seen = attention(q[:, :, hidden:], k, v, spec)
        return mx.concatenate([mx.zeros_like(q[:, :, :hidden]), seen], axis=2)
    mask = "causal" if spec.causal and query_length > 1 else None
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=spec.scale, mask=mask)


def _check(q: mx.array, k: mx.array, v: mx.array, spec: AttentionSpec) -> None:
    """Raise ValueError, before any launch, for what no kernel can compute."""
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape:
        raise ValueError(f"attention takes 4-d q, k, v; found q{q.shape}, k{k.shape}, v{v.shape}")
    wanted = (q.shape[0], spec.kv_heads, k.shape[2], spec.head_dim)
    if q.shape[1] != spec.heads or q.shape[3] != spec.head_dim or k.shape != wanted:
        raise ValueError(f"attention of {spec} does not fit q{q.shape}, k{k.shape}")
    if spec.heads % spec.kv_heads:
        raise ValueError(f"{spec.heads} query heads are no multiple of {spec.kv_heads} kv heads")
