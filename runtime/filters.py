"""Truncations of the next-token distribution, over numpy or mlx.core alike.

A distribution is a pair of int64 arrays [C] in the order of falling probability, equal ones by
rising id: `ids`, and `weights`, each token's probability in units of 2^-40 of the likeliest one's.
Integer sums are exact in any order, so that where a cut falls does not depend on how a backend
adds. A filter sets the weights of the tokens it removes to 0 and leaves the order alone; it never
removes everything, and the next one sees what is left, renormalized.
"""

from types import ModuleType
from typing import Any

import numpy as np

Array = Any

UNIT_BITS = 40
UNIT = 2**UNIT_BITS  # the weight of the likeliest token
MAX_VOCAB = 2**21  # ids and 41-bit weights share a sort key of 62 bits; sums stay below 2^62
_ID_BITS = 21
_NATS_STEP = 2**16  # distances of typical_p are compared in steps of 2^-16 nat


def fraction(p: float) -> int:
    """`p` in units of 2^-32, as `share` takes it."""
    return round(p * 2**32)


def share(xp: ModuleType, total: Array, numerator: int) -> Array:
    """floor(total * numerator / 2^32) for 0 <= numerator < 2^32 and total < 2^62, in int64."""
    factor = xp.array(numerator, dtype=xp.int64)
    high = factor * (total >> 31)
    low = factor * (total & (2**31 - 1))
    return (high + (low >> 31)) >> 1


def weigh(
    xp: ModuleType,
    logits: Array,
    temperature: float,
    room: tuple[np.ndarray, np.ndarray] | None = None,
) -> Array:
    """Weights int64 [V] of `logits` [V] (float32, finite or -inf) at `temperature` > 0.

    With numpy, `room` (float32 [V], int64 [V]) takes the results: fresh pages for arrays of this
    size cost several times the arithmetic.
    """
    top = xp.max(logits)
    top = xp.where(top == -xp.inf, xp.zeros_like(top), top)
    inverse = min(1.0 / temperature, 1e30)  # keeps 0 * inverse = 0 at the smallest temperatures
    if room is None:
        return (xp.exp((logits - top) * inverse) * float(UNIT)).astype(xp.int64)
    scaled, weights = room
    np.subtract(logits, top, out=scaled)
    scaled *= inverse
    np.exp(scaled, out=scaled)
    scaled *= float(UNIT)
    np.copyto(weights, scaled, casting="unsafe")
    return weights


def ranked(xp: ModuleType, weights: Array, ids: Array, top_k: int = 0) -> tuple[Array, Array]:
    """`ids` and `weights` in order, cut to the first `top_k` (0: all)."""
    keys = ((UNIT - weights) << _ID_BITS) | ids
    if 0 < top_k < keys.size:
        keys = xp.partition(keys, top_k - 1)[:top_k]
    keys = xp.sort(keys)
    return keys & (2**_ID_BITS - 1), UNIT - (keys >> _ID_BITS)


def likeliest(weights: np.ndarray, count: int, mass: int, floor: int) -> np.ndarray:
    """Ids of a set of likeliest tokens that decides the draw; all others are less likely.

    It holds `count` tokens and weighs `mass`, or else, when `floor` is not 0, it holds every token
    of weight >= `floor`.
    Saves the sort of all V for what is mostly a few dozen tokens; only for numpy, since the size
    of the answer depends on the values.
    """
    for bits in (6, 12, 24):
        chosen = np.flatnonzero(weights >= UNIT >> bits)
        enough = len(chosen) >= count and weights[chosen].sum() >= mass
        if len(chosen) and (enough or floor >= UNIT >> bits):
            return chosen
    return np.arange(len(weights))


def top_p(xp: ModuleType, weights: Array, total: Array, p: float) -> Array:
    """The shortest prefix with probability >= p (Holtzman et al. 2020, nucleus sampling).

    `total` is the weight of the whole distribution, of which `weights` may be a prefix.
    """
    needed = xp.maximum(share(xp, total, fraction(p)), 1)
    before = xp.cumsum(weights) - weights
    return xp.where(before < needed, weights, xp.zeros_like(weights))


def min_weight(p: float) -> int:
    """The least weight that `min_p` keeps."""
    return round(p * UNIT)


def min_p(xp: ModuleType, weights: Array, p: float) -> Array:
    """Tokens at least `p` times as likely as the likeliest one (Nguyen et al. 2024)."""
    return xp.where(weights >= min_weight(p), weights, xp.zeros_like(weights))


def typical(xp: ModuleType, weights: Array, p: float) -> Array:
    """Tokens with a surprise near the entropy, until their probability is >= p.

    Meister et al. 2022, locally typical sampling; of equal distances the likelier token first.
    """
    total = xp.sum(weights)
    mass = weights.astype(xp.float32)
    surprise = xp.log(total.astype(xp.float32)) - xp.log(xp.maximum(mass, 1.0))
    entropy = xp.sum(mass * surprise) / total.astype(xp.float32)
    distance = (xp.abs(surprise - entropy) * _NATS_STEP).astype(xp.int64)
    distance = xp.where(weights > 0, distance, 2**30)
    keys = (distance << _ID_BITS) | xp.arange(weights.size)
    nearest = xp.sort(keys)
    reached = xp.cumsum(xp.take(weights, nearest & (2**_ID_BITS - 1)))
    needed = xp.maximum(share(xp, total, fraction(p)), 1)
    last = xp.minimum(xp.sum(reached < needed), weights.size - 1)
    return xp.where(keys <= xp.take(nearest, last), weights, xp.zeros_like(weights))


def exclude_top(xp: ModuleType, weights: Array, threshold: float) -> Array:
    """XTC: of the tokens with probability >= threshold, remove all but the least likely one."""
    if threshold > 0.5:  # two tokens cannot both be that likely
        return weights
    needed = xp.maximum(share(xp, xp.sum(weights), fraction(threshold)), 1)
    likely = weights >= needed
    rank = xp.cumsum(likely.astype(xp.int64))
    removed = likely & (rank < rank[-1])
    return xp.where(removed, xp.zeros_like(weights), weights)


def draw(xp: ModuleType, ids: Array, weights: Array, total: Array, u: int) -> Array:
    """The token at which the cumulative weight passes total * u / 2^32 (0 <= u < 2^32), 0-d."""
    position = xp.sum(xp.cumsum(weights) <= share(xp, total, u))
    return xp.take(ids, xp.minimum(position, ids.size - 1))
