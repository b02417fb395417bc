"""What a page holds of attention: of each query and head the top keys, never a map of all pairs.

Shapes: S tokens · H query heads · K key/value heads · k keys that are kept of a query.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...runtime.errors import InputError
from .attention import Block, blocks, largest, weighted_sums, with_mean
from .trace import LayerTrace

MOST_BYTES = 9_000_000  # of all layers together; the text and the program come on top
LOG_FLOOR = -16.0  # weights below e^-16 are left out
_STEPS = 2**16 - 1


def layer_bytes(heads: int, kv_heads: int, tokens: int, top: int) -> int:
    """About how many characters `pack_layer` gives."""
    pairs = (heads + 1) * tokens * top * (_key_type(tokens).itemsize + 2)
    rows = tokens * (2 * (2 * heads + 2 * kv_heads) + 4 * heads)
    return (pairs + rows) * 4 // 3


def choose_layers(
    wanted: Sequence[int] | None, first: int, count: int, each: int
) -> tuple[list[int], bool]:
    """The layers of a page, `each` bytes large, and whether some of the `count` are left out.

    `wanted` are taken as they are, with the one that is shown `first`. None takes all that fit, or
    as many as fit, evenly spaced. Raises InputError when `wanted`, or a single one, are too large.
    """
    room = MOST_BYTES // each
    chosen = sorted({first, *(range(count) if wanted is None else wanted)})
    if wanted is None and len(chosen) > room >= 1:
        spaced = np.linspace(0, count - 1, room).round().astype(int).tolist()
        nearest = min(spaced, key=lambda layer: abs(layer - first))
        chosen = sorted({first, *spaced} - ({nearest} - {first}))
    if len(chosen) > room:
        size = f"{len(chosen) * each / 1e6:,.0f} MB"
        raise InputError(
            f"layers of this text ({len(chosen)}) take {size} in the page, which holds "
            f"{MOST_BYTES / 1e6:,.0f}; give fewer with --layers, a smaller --top or a shorter text"
        )
    return chosen, len(chosen) < count


def pack_layer(layer: LayerTrace, top: int) -> dict[str, Any]:
    """Top keys and their weights [H + 1, S, k], the last row the mean of all heads; norms.

    A weight is kept as its logarithm in 65,535 steps from 0 down to LOG_FLOOR, 0 for none: the
    score is that and the row's log-sum-exp. Lengths are in 65,535 steps of the largest. Arrays are
    base64 of little-endian numbers.
    """
    tokens, spec = layer.k.shape[1], layer.spec
    keys = np.zeros((spec.heads + 1, tokens, top), _key_type(tokens))
    logs = np.zeros(keys.shape, "<u2")
    lse = np.zeros((spec.heads, tokens), "<f4")
    outputs = np.zeros((spec.heads, tokens), np.float32)
    sinks = np.zeros((spec.heads, tokens), np.float32)
    for block in blocks(layer):
        at = block.queries
        keys[:, at], logs[:, at] = _top(block, top)
        best = block.scores.argmax(axis=-1)[..., None]
        score, weight = (
            np.take_along_axis(values, best, -1)[..., 0] for values in (block.scores, block.weights)
        )
        lse[:, at] = score - np.log(weight)
        outputs[:, at] = np.linalg.norm(weighted_sums(layer, block), axis=-1)
        sinks[:, at] = block.sinks
    capped, biased = spec.softcap is not None, layer.slopes is not None
    return {
        "keys": _text(keys),
        "log_weights": _text(logs),
        "lse": _text(lse),
        "sinks": None if layer.sinks is None else _in_steps(sinks),
        "q_norms": _in_steps(np.linalg.norm(layer.q, axis=-1)),
        "k_norms": _in_steps(np.linalg.norm(layer.k, axis=-1)),
        "v_norms": _in_steps(np.linalg.norm(layer.v, axis=-1)),
        "output_norms": _in_steps(outputs),
        "scale": spec.scale,
        "plain": not (capped or biased),
        "rule": ("" if spec.window is None else f", window {spec.window:,} keys")
        + (f", softcap {spec.softcap:g}" if capped else "")
        + (", less the head's ALiBi slope times the distance" if biased else ""),
    }


def _top(block: Block, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and steps of the logarithm [H + 1, n, k] of the block's largest weights."""
    ids, values = largest(with_mean(block.weights), top)
    with np.errstate(divide="ignore"):
        share = 1 - np.log(values) / LOG_FLOOR
    steps = (np.clip(share, 0, 1) * _STEPS).round().astype("<u2")
    spare = [(0, 0), (0, 0), (0, top - ids.shape[-1])]
    return np.pad(block.first + ids, spare), np.pad(steps, spare)


def _key_type(tokens: int) -> np.dtype:
    return np.dtype("<u2" if tokens <= 2**16 else "<u4")


def _in_steps(values: np.ndarray) -> dict[str, Any]:
    """Numbers from 0 on in 65,535 steps up to the largest."""
    most = float(values.max()) or 1.0
    return {"most": most, "steps": _text((values * (_STEPS / most)).round().astype("<u2"))}


def _text(array: np.ndarray) -> str:
    return b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
