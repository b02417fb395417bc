"""Routing and mixing experts in numpy (see `experts.py`): the reference, written plainly."""

from collections.abc import Callable

import numpy as np

from .config import Experts
from .experts import LEAST_SUM

Expert = Callable[[int, np.ndarray], np.ndarray]  # an expert's number, rows [n, E] → [n, E]


def route(
    logits: np.ndarray, spec: Experts, correction: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The router's logits [T, X] → the chosen experts and their weights, each [T, k]."""
    if spec.score == "sigmoid":
        scores = 1.0 / (1.0 + np.exp(-logits))
    else:
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = powers / powers.sum(axis=-1, keepdims=True)
    ranked = scores if correction is None else scores + correction
    if spec.groups > 1:
        ranked = np.where(_in_best_groups(ranked, spec), ranked, -np.inf)
    chosen = _best(ranked, spec.per_token)
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if spec.renormalise:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + LEAST_SUM)
    return chosen, weights * spec.scale


def _in_best_groups(ranked: np.ndarray, spec: Experts) -> np.ndarray:
    """Whether an expert is in one of its token's best groups [T, X]."""
    tokens, count = ranked.shape
    grouped = np.sort(ranked.reshape(tokens, spec.groups, -1), axis=-1)
    sums = grouped[..., -2:].sum(axis=-1)  # [T, groups]
    kept = np.zeros_like(sums, dtype=bool)
    np.put_along_axis(kept, _best(sums, spec.chosen_groups), True, axis=-1)
    return np.repeat(kept, count // spec.groups, axis=-1)


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-scores, axis=-1, kind="stable")[..., :count]


def mix(x: np.ndarray, chosen: np.ndarray, weights: np.ndarray, expert: Expert) -> np.ndarray:
    """x [T, E] through its experts, weighed and summed [T, E]."""
    out = np.zeros_like(x)
    for number in np.unique(chosen):
        rows, places = np.nonzero(chosen == number)  # a token has an expert once
        out[rows] += weights[rows, places, None] * expert(number, x[rows])
    return out
