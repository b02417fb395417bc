"""MLX's quantized weights in the terms of onnxruntime's MatMulNBits.

In the mode affine, MLX stores w = scale·code + bias for each group of a row; MatMulNBits computes
w = scale·(code − zero_point) with integer zero points. Packed bytes are the same in both (little
endian, low bits first), so 4- and 8-bit codes are reused as they are. The zero point is
−bias/scale, rounded; what rounding leaves over, one number a group, is the `residual`.

The modes mxfp4 and nvfp4 store w = scale·v with v in E2M1, of which 2·v is an integer from −12 to
12: in 8-bit codes they are exact. mxfp8's E4M3 values span 2¹⁸ steps, which no such code holds.

Shapes: N rows · K columns · G groups in a row.
"""

from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

_TOLERANCE = 1e-6  # of a group's span: float32 noise around a zero point that was an integer
# A residual's mean square, in spans², that may be dropped: on SmolLM2 it adds 3e-5 nats of KL
# divergence, a hundredth of what int8 activations cost.
_DROPPED = 1.5e-7

_FP4_MODES = frozenset({"mxfp4", "nvfp4"})
# E2M1's sixteen values (OCP MX v1.0, table 5), doubled and shifted to be codes of 8 bits.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_E2M1_CODES = (128 + 2 * np.concatenate([_E2M1, -_E2M1])).astype(np.uint8)


@dataclass(frozen=True)
class NBits:
    """A quantized matrix: w[n, k] = scales·(code[n, k] − zero_points) + residual, by group."""

    bits: int  # 4 or 8, of a stored code
    block: int  # columns of a group
    columns: int  # K; the last block may be incomplete
    codes: np.ndarray  # uint8 [N, G, block·bits/8]
    scales: np.ndarray  # float32 [N, G]
    zero_points: np.ndarray  # uint8 [N, G], one a byte
    residual: np.ndarray  # float32 [N, G]
    spans: np.ndarray  # float32 [N, G]: from a group's lowest possible weight to its highest
    sum_copies: int = 0  # how often x's group sums follow x in what it multiplies (see `residual`)
    outliers: tuple[int, ...] = ()  # channels of x that have columns apart (see `outliers`)

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def symmetric(self) -> bool:
        """Whether all zero points are MatMulNBits's default, the middle of the range."""
        return bool((self.zero_points == 1 << (self.bits - 1)).all())

    @property
    def inexact(self) -> bool:
        """Whether dropping the residual changes more than float32 rounding does."""
        return bool((np.abs(self.residual) > _TOLERANCE * self.spans).any())

    @property
    def needs_residual(self) -> bool:
        """Whether dropping the residual would show beside the noise of int8 activations."""
        noise = np.square(self.residual, dtype=np.float64).sum()
        return bool(noise > _DROPPED * np.square(self.spans, dtype=np.float64).sum())


def is_exact(layer: nn.Module) -> bool:
    """Whether codes and integer zero points, with a residual, say exactly what the layer does."""
    return layer.mode == "affine" or layer.mode in _FP4_MODES


def container_bits(layer: nn.Module, weights: str) -> int:
    """Bits that a code takes in the graph: 4 where it fits, unless all are to be `int8`."""
    return 8 if weights == "int8" or layer.bits > 4 or layer.mode in _FP4_MODES else 4


def from_layer(layer: nn.Module, bits: int) -> NBits:
    """The weight of a quantized MLX layer (see `is_exact`), in codes of `container_bits`.

    Narrower affine codes are spread over the wider range: w = (scale/f)·(f·code) + bias is the same
    weight, and the zero point's rounding leaves f times less over.
    """
    if layer.mode in _FP4_MODES:
        return _from_fp4(layer)
    steps = np.array(layer.scales.astype(mx.float32), dtype=np.float64)
    biases = np.array(layer.biases.astype(mx.float32), dtype=np.float64)
    spread = (2**bits - 1) // (2**layer.bits - 1)
    groups, block = steps.shape[1], layer.group_size
    codes = _packed_codes(layer, bits, spread).reshape(-1, groups, block * bits // 8)
    constant = (steps == 0) & (biases != 0)
    if constant.any():
        # Such a group is its bias throughout: code 1 at a step of `bias` says the same.
        codes = codes.copy()
        codes[constant] = spread if bits == 8 else spread * 0x11
        steps, biases = np.where(constant, biases, steps), np.where(constant, 0.0, biases)
    scales = steps / spread
    zero_points = np.rint(-biases / np.where(scales == 0, 1.0, scales))
    zero_points = np.clip(zero_points, 0, 2**bits - 1)
    return NBits(
        bits=bits,
        block=block,
        columns=groups * block,
        codes=codes,
        scales=scales.astype(np.float32),
        zero_points=zero_points.astype(np.uint8),
        residual=(biases + scales * zero_points).astype(np.float32),
        spans=(np.abs(steps) * (2**layer.bits - 1)).astype(np.float32),
    )


def _from_fp4(layer: nn.Module) -> NBits:
    """E2M1 codes and 8-bit floating-point scales: w = scale/2 · ((128 + 2·v) − 128)."""
    groups, block, columns = layer.scales.shape[1], layer.group_size, 8 * layer.weight.shape[1]
    nibbles = unpack(np.array(layer.weight).view(np.uint8), 4)  # [N, K]
    scales = _float_scales(layer) / 2
    return NBits(
        bits=8,
        block=block,
        columns=columns,
        codes=_E2M1_CODES[nibbles].reshape(-1, groups, block),
        scales=scales,
        zero_points=np.full(scales.shape, 128, np.uint8),
        residual=np.zeros_like(scales),
        spans=24 * scales,
    )


def _float_scales(layer: nn.Module) -> np.ndarray:
    """The scales as float32 [N, G]: what MLX makes of a weight of 1 in each group."""
    ones = 0x22222222  # eight codes of 1.0 in E2M1
    words = layer.group_size // 8
    packed = mx.full((*layer.scales.shape[:-1], layer.scales.shape[-1] * words), ones, mx.uint32)
    values = mx.dequantize(
        packed,
        layer.scales,
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
        dtype=mx.float32,
    )
    return np.ascontiguousarray(np.array(values)[:, :: layer.group_size])


def stack(parts: list[NBits]) -> NBits:
    """Matrices of the same K, bits and block, one below the other."""
    names = ("codes", "scales", "zero_points", "residual", "spans")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **joined)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 codes [..., n], one a byte → [..., n·bits/8], the first in the lowest bits."""
    return codes if bits == 8 else codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(codes: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of `pack`."""
    if bits == 8:
        return codes
    return np.stack([codes & 0x0F, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


def _packed_codes(layer: nn.Module, bits: int, spread: int) -> np.ndarray:
    """The codes as packed bytes; taken apart only where their width changes."""
    if layer.bits == bits:
        return np.array(layer.weight).view(np.uint8)
    ones = mx.ones(layer.scales.shape, mx.float16)
    unpacked = mx.dequantize(
        layer.weight, ones, mx.zeros_like(ones), group_size=layer.group_size, bits=layer.bits
    )
    return pack(np.array(unpacked.astype(mx.uint8)) * np.uint8(spread), bits)
