"""Quantized linear layers in operators of ONNX itself: DequantizeLinear, then MatMul.

onnxruntime fuses the pair into MatMulNBits when the weight lies as [K, N] and is dequantized in
blocks along K.
"""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from .builder import Value
from .linear import Linears
from .nbits import NBits, unpack

_CHUNK_BYTES = 32 * 2**20


class DequantizedLinears(Linears):
    """`Linears` of the dialect `standard`."""

    takes_more_columns = False
    has_float_product = False

    def _multiply(
        self,
        name: str,
        matrix: NBits,
        x: Value,
        stored: tuple[Value, Value] | None,
        in_float: bool,
        bias: np.ndarray | None = None,
    ) -> Value:
        """A table that is also looked up is stored a second time: here it lies as [K, N]."""
        graph, dtype = self._graph, TensorProto.UINT4 if matrix.bits == 4 else TensorProto.UINT8
        shape = (matrix.columns, matrix.rows)
        weight = graph.weight(f"{name}.weight_t", dtype, shape, lambda: _transposed(matrix))
        scales = graph.array(f"{name}.scales_t", np.ascontiguousarray(matrix.scales.T))
        zeros = matrix.zero_points.T  # [G, N]
        zero_points = graph.weight(
            f"{name}.zero_points_t", dtype, zeros.shape, lambda: [_flat(zeros, matrix.bits)]
        )
        dense = graph.op(
            "DequantizeLinear",
            weight,
            scales,
            zero_points,
            dtype=TensorProto.FLOAT,
            name=f"{name}/DequantizeLinear",
            axis=0,
            block_size=matrix.block,
        )
        if in_float:
            # A node in between keeps onnxruntime from fusing the two into an int8 product.
            dense = graph.op("Reshape", dense, graph.ints(*shape))
        return graph.op("MatMul", x, dense, name=f"{name}/MatMul")


def _transposed(matrix: NBits) -> Iterator[np.ndarray]:
    """The codes as the bytes of [K, N], some rows of K at a time."""
    codes = matrix.codes.reshape(matrix.rows, -1)
    per_byte = 8 // matrix.bits
    step = max(1, _CHUNK_BYTES // (2 * matrix.rows)) * 2  # even: a chunk fills whole bytes
    for start in range(0, matrix.columns, step):
        packed = codes[:, start // per_byte : (start + step) // per_byte]
        yield _flat(unpack(packed, matrix.bits).T, matrix.bits)


def _flat(codes: np.ndarray, bits: int) -> np.ndarray:
    """One code a byte, any shape → bytes in row-major order, as ONNX packs them."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    if bits == 8:
        return flat
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[0::2] | flat[1::2] << 4
