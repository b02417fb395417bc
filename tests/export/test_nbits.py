"""Affine weights as MatMulNBits sees them, by arithmetic alone."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.export.nbits import NBits, from_layer, pack, stack, unpack
from pippin.export.residual import with_residual_columns


def quantized(bits, group=32, rows=5, columns=96, seed=0):
    rng = np.random.default_rng(seed)
    layer = nn.Linear(columns, rows, bias=False)
    layer.weight = mx.array(rng.standard_normal((rows, columns)).astype(np.float32))
    return layer.to_quantized(group, bits), rng


def weights_of(matrix: NBits) -> np.ndarray:
    """Every column's weight, those of residuals too, without the residual left over."""
    codes = unpack(matrix.codes, matrix.bits).astype(np.float64)
    values = (codes - matrix.zero_points[..., None]) * matrix.scales[..., None]
    return values.reshape(matrix.rows, -1)[:, : matrix.columns]


def dequantized(layer):
    return np.array(
        mx.dequantize(
            layer.weight, layer.scales, layer.biases, group_size=layer.group_size, bits=layer.bits
        )
    )


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(
    ("bits", "width"), [(2, 4), (2, 8), (3, 4), (3, 8), (4, 4), (4, 8), (5, 8), (6, 8), (8, 8)]
)
def test_the_same_weights_in_any_container(bits, width, group):
    layer, _ = quantized(bits, group, columns=256)
    matrix = from_layer(layer, width)
    assert not matrix.inexact  # MLX's own quantizer gives integer zero points
    assert np.abs(weights_of(matrix) - dequantized(layer)).max() < 1e-5


def test_residual_makes_up_for_rounded_zero_points():
    layer, rng = quantized(4)
    layer.biases = layer.biases + layer.scales * mx.array(
        rng.uniform(-3, 3, layer.biases.shape).astype(np.float32)
    )
    matrix = from_layer(layer, 4)
    assert matrix.inexact
    assert matrix.needs_residual
    whole = weights_of(matrix) + np.repeat(matrix.residual, 32, axis=1)
    assert np.abs(whole - dequantized(layer)).max() < 1e-5


def test_constant_groups_are_their_bias():
    layer, _ = quantized(4)
    layer.scales = layer.scales * mx.array((np.arange(15) % 4 > 0).reshape(5, 3))
    for bits in (4, 8):
        matrix = from_layer(layer, bits)
        whole = weights_of(matrix) + np.repeat(matrix.residual, 32, axis=1)
        assert np.abs(whole - dequantized(layer)).max() < 1e-5


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [32, 96, 576, 1536])
def test_residual_columns_multiply_group_sums(bits, columns):
    layer, rng = quantized(4, columns=columns)
    layer.biases = layer.biases + layer.scales * mx.array(
        rng.uniform(-0.5, 0.5, layer.biases.shape).astype(np.float32)
    )
    matrix = with_residual_columns(from_layer(layer, bits))
    assert not matrix.needs_residual
    assert matrix.sum_copies >= 1
    x = rng.standard_normal((3, columns))
    sums = x.reshape(3, -1, 32).sum(-1)
    extended = np.concatenate([x] + [sums] * matrix.sum_copies, axis=1)
    wanted = x @ dequantized(layer).T
    assert extended.shape[1] == matrix.columns
    assert np.abs(extended @ weights_of(matrix).T - wanted).max() / np.abs(wanted).max() < 2e-3


@given(st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda v: len(v) % 2 == 0))
def test_packing_is_little_endian_and_reversible(values):
    codes = np.array(values, np.uint8)
    packed = pack(codes, 4)
    assert packed[0] == values[0] | values[1] << 4
    assert np.array_equal(unpack(packed, 4), codes)


def test_stacking_keeps_rows_in_order():
    parts = [from_layer(quantized(4, seed=seed)[0], 4) for seed in range(3)]
    joined = weights_of(stack(parts))
    assert np.array_equal(joined, np.concatenate([weights_of(part) for part in parts]))
