"""Where attention went: the mass of each key, the entropy and the top keys of each query."""

from typing import NamedTuple

import mlx.core as mx

from .arguments import SPEC_NAMES, spec_arrays
from .checks import check_attention
from .dispatch import attention_mode, has_metal, uses_kernels
from .prefill import HEADERS, QUERIES, THREADS, block_keys, unsupported
from .source import metal_kernel
from .spec import AttentionSpec
from .statistics_fallback import statistics_fallback

MOST_KEYS = 16  # of top_k


class Statistics(NamedTuple):
    """Of one attention call, from the weights w of its L queries over its S keys."""

    mass: mx.array  # float32 [B, H, S]: sum of w over the queries
    entropy: mx.array  # float32 [B, H, L], nats: −sum of w·ln w over the keys
    top_ids: mx.array  # int32 [B, H, L, top_k]: keys of the largest w; −1 where fewer are seen
    top_weights: mx.array  # float32 [B, H, L, top_k]: their w; 0 where fewer are seen


def attention_statistics(
    q: mx.array,
    k: mx.array,
    lse: mx.array,
    spec: AttentionSpec,
    *,
    top_k: int = 8,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
) -> Statistics:
    """Statistics of the attention that gave the log-sum-exp `lse`, float32 [B, H, L].

    q [B, H, L, D], k [B, K, S, D], slopes, starts and ends as for `dispatch.attention`. A weight
    is exp(score − lse), made anew from q and k; nothing of size L·S is ever held, and the result
    does not depend on the order in which threads run. Of equal weights the lower key id is first.

    With sinks, lse counts them in, so the weights of a query's keys sum to less than 1, and the
    entropy is that of its keys' share alone: with r the rest, 1 − sum of w, the entropy of the
    whole distribution is larger by −r·ln r. A query that sees no key has entropy 0.

    Raises ValueError when the shapes or types do not fit, or top_k is not 1 to 16.
    """
    arrays = {"slopes": slopes, "starts": starts, "ends": ends}
    check_attention(q, k, k, spec, **arrays)
    if lse.shape != q.shape[:3] or lse.dtype != mx.float32:
        raise ValueError(f"lse is {lse.dtype}{lse.shape}; expected float32 {q.shape[:3]}")
    if not 1 <= top_k <= MOST_KEYS:
        raise ValueError(f"top_k is {top_k}; it must be 1 to {MOST_KEYS}")
    usable = uses_kernels(has_metal(), attention_mode())
    if usable and unsupported(spec, q.dtype, spec.head_dim, q.shape[2], k.shape[2]) is None:
        return metal_statistics(q, k, lse, spec, top_k, **arrays)
    return Statistics(*statistics_fallback(q, k, lse, spec, top_k, **arrays))


def metal_statistics(
    q: mx.array,
    k: mx.array,
    lse: mx.array,
    spec: AttentionSpec,
    top_k: int,
    **arrays: mx.array | None,
) -> Statistics:
    """See `attention_statistics`; the arguments have been checked, and `unsupported` said None.

    One kernel goes through the keys of 32 queries, for entropy and top keys, the other through
    the queries of 32 keys, for the mass: no threadgroup adds to the sum of another. Drawn for
    tiles of 2, with L = 4, S = 7 and W = 3: a tile is two rows on the left, two columns on the
    right, and reads what is 0 or 1::

        . |1 1 1 0|. .        0 1|1 1|. .|.
        . |0 1 1 1|. .        . .|1 1|1 0|.
        . . . |1 1 1 0|       . .|0 1|1 1|.
        . . . |0 1 1 1|       . .|. .|1 1|1
    """
    batch, heads, length, head_dim = q.shape
    total = k.shape[2]
    launch = {
        "inputs": [q, k, lse, *spec_arrays(spec, batch, sinks=None, **arrays)[1:]],
        "template": [
            ("T", q.dtype),
            ("D", head_dim),
            ("BLOCK", block_keys(head_dim)),
            ("SOFTCAP", spec.softcap is not None),
            ("TOP", top_k),
        ],
        "threadgroup": (THREADS, 1, 1),
    }
    rows = (batch, heads, length)
    entropy, ids, weights = _kernel("query_statistics", ("entropy", "top_ids", "top_weights"))(
        **launch,
        grid=(-(-length // QUERIES) * THREADS, heads, batch),
        output_shapes=[rows, (*rows, top_k), (*rows, top_k)],
        output_dtypes=[mx.float32, mx.int32, mx.float32],
    )
    (mass,) = _kernel("key_statistics", ("mass",), "BY_KEY")(
        **launch,
        grid=(-(-total // QUERIES) * THREADS, heads, batch),
        output_shapes=[(batch, heads, total)],
        output_dtypes=[mx.float32],
    )
    return Statistics(mass, entropy, ids, weights)


def _kernel(name: str, outputs: tuple[str, ...], *defines: str) -> mx.fast.metal_kernel:
    return metal_kernel(
        name,
        ("q", "k", "lse", *SPEC_NAMES[1:]),
        outputs,
        body="statistics",
        headers=(*HEADERS, "ranking"),
        defines=defines,
    )
