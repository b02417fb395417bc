"""One function for attention; it chooses who computes it."""

import mlx.core as mx

from .checks import check_attention
from .fallback import fallback_attention
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
