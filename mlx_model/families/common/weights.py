"""Renaming and re-laying a checkpoint's tensors.

A layer X has X.weight [out, in], and X.bias [out] where it has one; quantized by MLX also X.scales
and X.biases, whose rows go with the weight's. All functions here move rows only, so they treat
these alike; a layout that cannot be had so is refused for quantized layers.

MLX is imported where arrays are touched: a family's config is read on machines without it too.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....runtime.errors import InputError

if TYPE_CHECKING:
    import mlx.core as mx

Weights = dict[str, "mx.array"]
_LEAVES = ("weight", "bias", "scales", "biases")


def rename(weights: Weights, *rules: tuple[str, str]) -> Weights:
    """Apply each rule (regular expression, replacement) to each name, in order."""
    renamed = {}
    for name, array in weights.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = array
    return renamed


def drop(weights: Weights, pattern: str) -> Weights:
    """Leave out tensors whose whole name matches: buffers that follow from the config."""
    return {name: array for name, array in weights.items() if not re.fullmatch(pattern, name)}


def split(weights: Weights, fused: str, parts: Sequence[tuple[str, int]]) -> Weights:
    """Cut layers named …`fused` into …part by rows, in order; `parts` gives name and rows."""
    return split_groups(weights, fused, 1, parts)


def split_groups(
    weights: Weights, fused: str, groups: int, parts: Sequence[tuple[str, int]]
) -> Weights:
    """Like `split` where the rows lie as `groups` times (all parts); `parts`: rows in a group."""
    import mlx.core as mx

    result = {}
    for name, array in weights.items():
        stem, _, leaf = name.rpartition(".")
        if not _is_layer(stem, leaf, fused):
            result[name] = array
            continue
        each = sum(rows for _, rows in parts)
        _check_rows(name, array, groups * each)
        grouped = mx.unflatten(array, 0, (groups, each))
        start = 0
        for part, rows in parts:
            piece = grouped[:, start : start + rows].flatten(0, 1)
            result[f"{stem.removesuffix(fused)}{part}.{leaf}"] = piece
            start += rows
    return result


def transpose(weights: Weights, pattern: str) -> Weights:
    """Turn [in, out] weights of layers whose stem matches into [out, in] (GPT-2's Conv1D)."""
    result = {}
    for name, array in weights.items():
        stem, _, leaf = name.rpartition(".")
        if leaf == "weight" and re.fullmatch(pattern, stem):
            if f"{stem}.scales" in weights:
                raise InputError(
                    f"the checkpoint's {stem} was quantized as [in, out], along the wrong axis; "
                    "quantize the original checkpoint with `pippin quantize`"
                )
            array = array.T
        result[name] = array
    return result


def stack(weights: Weights, pattern: str, stacked: str, count: int) -> Weights:
    """Join per-expert layers [out, in] to one [X, out, in].

    `pattern` matches a name's stem, with a group `expert`; `stacked` is the stem that it becomes
    (a template for re.Match.expand). Raises InputError unless experts 0…count−1 are all there.
    """
    import mlx.core as mx

    result: Weights = {}
    found: dict[str, dict[int, mx.array]] = {}
    for name, array in weights.items():
        stem, _, leaf = name.rpartition(".")
        match = re.fullmatch(pattern, stem) if leaf in _LEAVES else None
        if match is None:
            result[name] = array
        else:
            target = f"{match.expand(stacked)}.{leaf}"
            found.setdefault(target, {})[int(match["expert"])] = array
    for target, arrays in found.items():
        if sorted(arrays) != list(range(count)):
            raise InputError(
                f"the checkpoint has experts {sorted(arrays)} for {target}; "
                f"its config.json calls for 0 to {count - 1}"
            )
        if len(shapes := {tuple(array.shape) for array in arrays.values()}) > 1:
            raise InputError(f"the checkpoint's experts for {target} differ in shape: {shapes}")
        result[target] = mx.stack([arrays[expert] for expert in range(count)])
    return result


def _is_layer(stem: str, leaf: str, fused: str) -> bool:
    return leaf in _LEAVES and (stem == fused or stem.endswith(f".{fused}"))


def _check_rows(name: str, array: "mx.array", rows: int) -> None:
    if array.shape[0] != rows:
        raise InputError(
            f"the checkpoint's {name} has {array.shape[0]} rows; its config.json calls for {rows}"
        )
