"""The weights of stacked experts, one expert at a time, as the graph's nodes want them."""

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..mlx_model.dense import dense_weight
from ..mlx_model.experts import ExpertLinear, QuantizedExpertLinear
from . import floats
from .nbits import NBits, from_layer, pack

Stacked = ExpertLinear | QuantizedExpertLinear


def dense_shape(layer: Stacked) -> tuple[int, int, int]:
    """X, out, in."""
    count, rows, columns = layer.weight.shape
    if "scales" in layer:
        columns = layer.scales.shape[-1] * layer.group_size
    return count, rows, columns


def expert_rows(name: str, layers: list[Stacked], dtype: int) -> Iterator[np.ndarray]:
    """The rows of each expert in turn, some at a time; those of several layers alternate."""
    count, rows, columns = dense_shape(layers[0])
    for number in range(count):
        weights = [dense_weight(layer, slice(number, number + 1))[0] for layer in layers]
        mx.eval(weights)  # each is read in several slices

        def read(part: slice, weights: list[mx.array] = weights) -> mx.array:
            return mx.concatenate([weight[part] for weight in weights], axis=1)

        yield from floats.rows(name, (rows, len(layers) * columns), read, dtype)


def expert_codes(layers: list[Stacked], bits: int) -> Iterator[NBits]:
    """Each expert's rows as quantized codes; those of several layers alternate."""
    for number in range(dense_shape(layers[0])[0]):
        parts = [from_layer(_one(layer, number), bits) for layer in layers]
        names = ("codes", "scales", "zero_points", "residual", "spans")
        alternating = {
            name: np.stack([getattr(part, name) for part in parts], axis=1) for name in names
        }
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in alternating.items()}
        yield replace(parts[0], **flat)


def in_four_bits(
    matrix: NBits, keep_residual: bool, axis: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points of 4-bit matrices whose products add up to that of `matrix`.

    8 bits are two: code − zero = 16·(high − its zero) + (low − its zero). A residual is one more,
    whose codes are 1 and whose scales are the residual. They stand side by side (`axis` 1) or
    above each other (0).
    """
    codes, scales, zeros = matrix.codes, matrix.scales, matrix.zero_points
    parts = [(codes, scales, zeros)]
    if matrix.bits == 8:
        parts = [
            (pack(codes >> 4, 4), 16 * scales, zeros >> 4),
            (pack(codes & 0x0F, 4), scales, zeros & 0x0F),
        ]
    if keep_residual:
        ones = np.full_like(parts[0][0], 0x11)
        parts.append((ones, matrix.residual, np.zeros_like(zeros)))
    joined = (np.concatenate(arrays, axis=axis) for arrays in zip(*parts, strict=True))
    return tuple(joined)


def _one(layer: QuantizedExpertLinear, number: int) -> nn.Module:
    """A quantized layer that is one expert's."""
    one = nn.Module()
    one.group_size, one.bits, one.mode = layer.group_size, layer.bits, layer.mode
    for name in ("weight", "scales", "biases"):
        if name in layer:
            setattr(one, name, layer[name][number])
    return one
