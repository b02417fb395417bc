"""Routing and mixing experts with MLX (see `experts.py`)."""

from collections.abc import Callable

import mlx.core as mx

from .config import Experts
from .experts import LEAST_SUM, StackedExperts

_WORTH_SORTING = 64  # rows: then those of one expert are multiplied together

Gated = Callable[[str, mx.array, mx.array], mx.array]  # Ops.gated


def route(
    logits: mx.array, spec: Experts, correction: mx.array | None
) -> tuple[mx.array, mx.array]:
    """The router's logits [T, X] → the chosen experts and their float32 weights, each [T, k]."""
    logits = logits.astype(mx.float32)
    scores = mx.sigmoid(logits) if spec.score == "sigmoid" else mx.softmax(logits, axis=-1)
    ranked = scores if correction is None else scores + correction.astype(mx.float32)
    if spec.groups > 1:
        ranked = _in_best_groups(ranked, spec)
    chosen = _best(ranked, spec.per_token)
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    if spec.renormalise:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + LEAST_SUM)
    return chosen, weights if spec.scale == 1.0 else weights * spec.scale


def _in_best_groups(ranked: mx.array, spec: Experts) -> mx.array:
    """What stands outside the best groups becomes −∞."""
    grouped = mx.unflatten(ranked, -1, (spec.groups, -1))  # [T, groups, X/groups]
    sums = mx.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)  # [T, groups]
    best = _best(sums, spec.chosen_groups)
    outside = (mx.arange(spec.groups) != best[..., None]).all(axis=-2)  # [T, groups]
    return mx.where(outside[..., None], -mx.inf, grouped).flatten(-2)


def _best(scores: mx.array, count: int) -> mx.array:
    """The indices of the `count` largest along the last axis; of equals, the lower first."""
    return mx.argsort(-scores, axis=-1)[..., :count]  # which is stable, unlike argpartition


def mix(
    experts: StackedExperts, x: mx.array, chosen: mx.array, weights: mx.array, gated: Gated
) -> mx.array:
    """x [T, E] through its experts, weighed and summed [T, E]."""
    per_token, order = chosen.shape[-1], None
    if chosen.size < _WORTH_SORTING:
        rows, ordered = x[:, None, None], chosen  # [T, 1, 1, E], [T, k]
    else:
        order = mx.argsort(chosen.flatten())
        rows, ordered = x[order // per_token][:, None], chosen.flatten()[order]  # [T·k, 1, E]
    through = [
        layer(rows, ordered, order is not None) for layer in (experts.gate_proj, experts.up_proj)
    ]
    out = experts.down_proj(gated(experts.activation, *through), ordered, order is not None)
    if order is not None:
        out = mx.unflatten(out[mx.argsort(order)], 0, chosen.shape)  # [T, k, 1, E]
    return (out.squeeze(-2) * weights[..., None].astype(x.dtype)).sum(axis=-2)
