"""What attention did with a layer's operands, computed from them in the model's own order.

That is, as `kernels.reference` has it: scale, softcap, ALiBi, mask, softmax with sinks in its
denominator. Nothing of size [H, S, S] is held: queries are taken a block at a time.

Shapes: S tokens · H query heads · K key/value heads · D head_dim · n queries that are asked for.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .trace import LayerTrace

_SCORES = 1 << 22  # held at once, as long as one query's are no more


@dataclass(frozen=True)
class Step:
    """One query of one head, step by step; S keys, of which later ones are not seen."""

    q: np.ndarray  # [D]
    q_norm: float  # length of the vector
    k_norms: np.ndarray  # [S]
    v_norms: np.ndarray  # [S]
    products: np.ndarray  # [S], q·k
    scaled: np.ndarray  # [S], products · scale
    scores: np.ndarray  # [S], after softcap and ALiBi: they enter the softmax where seen
    seen: np.ndarray  # [S], bool: causal mask and window
    weights: np.ndarray  # [S]; 0 where not seen
    sink_weight: float  # what the head's sink takes; 0 without one
    output: np.ndarray  # [D], the sum of weights · v


@dataclass(frozen=True)
class Block:
    """The weights of some queries on the keys that any of them sees."""

    queries: np.ndarray  # [n], token positions
    first: int  # the position of the first key
    scores: np.ndarray  # [H, n, s], s keys from `first` on; −inf where not seen
    weights: np.ndarray  # [H, n, s]
    sinks: np.ndarray  # [H, n], what the heads' sinks take


@dataclass(frozen=True)
class Mass:
    """How queries share out their attention; with what went to keys of no group it sums to 1."""

    groups: np.ndarray  # [H, n, groups]; the first token is in none
    first: np.ndarray  # [H, n], what the first token got, where idle heads look
    sinks: np.ndarray  # [H, n], what the heads' own sinks took


def step(layer: LayerTrace, head: int, query: int) -> Step:
    """How the token `query` attends in `head`; both count from 0, IndexError outside."""
    spec, total = layer.spec, layer.k.shape[1]
    if not (0 <= head < spec.heads and 0 <= query < total):
        raise IndexError(f"head {head} of {spec.heads}, query {query} of {total} tokens")
    shared = head // (spec.heads // spec.kv_heads)
    q, k, v = layer.q[head, query], layer.k[shared], layer.v[shared]
    products, at, heads = k @ q, np.array([query]), slice(head, head + 1)
    scores = _scores(products[None, None], layer, at, 0, heads)
    seen = _seen(layer, at, 0, total)
    weights, sinks = _softmax(np.where(seen, scores, -np.inf), layer, heads)
    return Step(
        q=q,
        q_norm=float(np.linalg.norm(q)),
        k_norms=np.linalg.norm(k, axis=-1),
        v_norms=np.linalg.norm(v, axis=-1),
        products=products,
        scaled=products * np.float32(spec.scale),
        scores=scores[0, 0],
        seen=seen[0],
        weights=weights[0, 0],
        sink_weight=float(sinks[0, 0]),
        output=weights[0, 0] @ v,
    )


def weights(layer: LayerTrace, queries: Sequence[int] | np.ndarray) -> np.ndarray:
    """The weights of the tokens `queries` on every key, float32 [H, n, S]."""
    total = layer.k.shape[1]
    found = np.zeros((layer.spec.heads, len(queries), total), np.float32)
    done = 0
    for block in blocks(layer, queries):
        rows = slice(done, done + len(block.queries))
        found[:, rows, block.first : block.first + block.weights.shape[-1]] = block.weights
        done = rows.stop
    return found


def output(layer: LayerTrace, queries: Sequence[int] | np.ndarray) -> np.ndarray:
    """The weighted sums of the values, float32 [H, n, D]."""
    parts = [weighted_sums(layer, block) for block in blocks(layer, queries)]
    return np.concatenate(parts, axis=1)


def weighted_sums(layer: LayerTrace, block: Block) -> np.ndarray:
    """`output` of the queries of one block of the layer."""
    heads, count, keys = block.weights.shape
    v = layer.v[:, block.first : block.first + keys]
    return (block.weights.reshape(layer.spec.kv_heads, -1, keys) @ v).reshape(heads, count, -1)


def blocks(layer: LayerTrace, queries: Sequence[int] | np.ndarray | None = None) -> Iterator[Block]:
    """The weights of `queries` (None: of all tokens), as many at a time as memory allows.

    Neighbouring queries of a layer with a window are the cheaper, the narrower it is. IndexError
    for one that there is none of.
    """
    total = layer.k.shape[1]
    every = np.arange(total) if queries is None else np.asarray(queries, dtype=np.int64)
    if len(every) and not (every.min() >= 0 and every.max() < total):
        raise IndexError(f"queries {every.min()} to {every.max()} of {total} tokens")
    count = max(1, _SCORES // (layer.spec.heads * total))
    for start in range(0, len(every), count):
        yield _block(layer, every[start : start + count])


def top_keys(
    layer: LayerTrace, k: int, queries: Sequence[int] | np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` keys of the largest weights of `queries` (None: of all tokens), largest first.

    Ids int32 [H, n, k] and weights float32 [H, n, k]; −1 and 0 where fewer keys are seen. Of equal
    weights the lower id is first. On Metal, up to 16 keys of all tokens come from our kernels.
    """
    if queries is None and _on_metal():
        from ...kernels.statistics import MOST_KEYS
        from .mlx_trace import metal_top_keys

        if k <= MOST_KEYS:
            return metal_top_keys(layer, k)
    parts = [_top(block, k) for block in blocks(layer, queries)]
    ids, found = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return ids, found


def with_mean(values: np.ndarray) -> np.ndarray:
    """[H, …] → [H + 1, …], the last row the mean of all heads."""
    return np.concatenate([values, values.mean(axis=0, keepdims=True)])


def largest(found: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and values of the `count` largest of the last axis, or of all, largest first."""
    count = min(count, found.shape[-1])
    ids = np.argpartition(-found, count - 1, axis=-1)[..., :count]
    values = np.take_along_axis(found, ids, -1)
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(values, order, -1)


def mass(
    layer: LayerTrace, groups: Sequence[int] | np.ndarray, queries: Sequence[int] | None = None
) -> Mass:
    """What share of their attention `queries` (None: all tokens) give to each group of keys.

    `groups` [S] has each key's group, from 0, or −1 for none. The first token is counted apart,
    whatever its group: heads with nothing to do look at it (arXiv:2309.17453).
    """
    groups = np.array(groups, dtype=np.int64)
    if groups.shape != (layer.k.shape[1],):
        raise ValueError(f"groups are {groups.shape}; one is needed for each of the keys")
    member = groups[:, None] == np.arange(max(groups.max() + 1, 0))  # [S, groups]
    member[0] = False
    parts = []
    for block in blocks(layer, queries):
        chosen = member[block.first : block.first + block.weights.shape[-1]]
        # A copy: a view would keep the whole block.
        first = np.zeros_like(block.sinks) if block.first else block.weights[..., 0].copy()
        parts.append((block.weights @ chosen.astype(np.float32), first, block.sinks))
    return Mass(*(np.concatenate(column, axis=1) for column in zip(*parts, strict=True)))


def _block(layer: LayerTrace, at: np.ndarray) -> Block:
    spec, total = layer.spec, layer.k.shape[1]
    first, end = 0, total
    if spec.causal:
        end = int(at.max()) + 1
        first = 0 if spec.window is None else max(0, int(at.min()) + 1 - spec.window)
    q = layer.q[:, at].reshape(spec.kv_heads, -1, spec.head_dim)  # [K, G·n, D]
    products = q @ layer.k[:, first:end].swapaxes(-1, -2)
    products = products.reshape(spec.heads, len(at), end - first)
    scores = _scores(products, layer, at, first, slice(None))
    np.copyto(scores, -np.inf, where=~_seen(layer, at, first, end))
    found, sinks = _softmax(scores, layer, slice(None))
    return Block(at, first, scores, found, sinks)


def _scores(
    products: np.ndarray, layer: LayerTrace, at: np.ndarray, first: int, heads: slice
) -> np.ndarray:
    """q·k [h, n, s] → scores before the mask; the keys begin at `first`."""
    spec = layer.spec
    scores = products * np.float32(spec.scale)
    if spec.softcap is not None:
        scores = np.float32(spec.softcap) * np.tanh(scores / np.float32(spec.softcap))
    if layer.slopes is not None:
        distance = (at[:, None] - (first + np.arange(products.shape[-1]))).astype(np.float32)
        scores -= layer.slopes[heads, None, None].astype(np.float32) * distance
    return scores


def _seen(layer: LayerTrace, at: np.ndarray, first: int, end: int) -> np.ndarray:
    """Which of the keys `first` to `end` the queries `at` see, bool [n, s]."""
    keys, rows = np.arange(first, end), at[:, None]
    seen = keys <= rows if layer.spec.causal else np.ones((len(at), len(keys)), bool)
    return seen if layer.spec.window is None else seen & (keys > rows - layer.spec.window)


def _softmax(scores: np.ndarray, layer: LayerTrace, heads: slice) -> tuple[np.ndarray, np.ndarray]:
    """Scores [h, n, s] → weights [h, n, s] and what the sinks take [h, n].

    Every query sees its own key at least, so the largest score is finite.
    """
    top = scores.max(axis=-1, keepdims=True)
    sinks = None if layer.sinks is None else layer.sinks[heads, None, None].astype(np.float32)
    if sinks is not None:
        top = np.maximum(top, sinks)
    found = np.exp(scores - top)
    taken = np.zeros_like(top) if sinks is None else np.exp(sinks - top)
    total = found.sum(axis=-1, keepdims=True) + taken
    found /= total
    return found, (taken / total)[..., 0]


def _top(block: Block, k: int) -> tuple[np.ndarray, np.ndarray]:
    """See `top_keys`; by scores, of which distinct ones may have the same weight, 0."""
    scores = block.scores.copy()
    ids = np.full((*scores.shape[:2], k), -1, np.int32)
    found = np.zeros(ids.shape, np.float32)
    for place in range(min(k, scores.shape[-1])):
        best = scores.argmax(axis=-1)[..., None]  # of equal ones the first
        seen = np.take_along_axis(scores, best, axis=-1) > -np.inf
        weight = np.take_along_axis(block.weights, best, axis=-1)
        ids[..., place] = np.where(seen, block.first + best, -1)[..., 0]
        found[..., place] = np.where(seen, weight, 0.0)[..., 0]
        np.put_along_axis(scores, best, -np.inf, axis=-1)
    return ids, found


def _on_metal() -> bool:
    """Whether MLX is in use here, and on a device with Metal."""
    if sys.modules.get("mlx.core") is None:
        return False
    from ...kernels.dispatch import has_metal

    return has_metal()
