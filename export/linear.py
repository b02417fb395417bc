"""Linear layers as ONNX nodes: MatMul over floats, MatMulNBits over MLX's packed codes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..mlx_model.dense import dense_weight
from . import floats
from .builder import CONTRIB, GraphBuilder, Value
from .nbits import NBits, container_bits, from_layer, pack, stack
from .residual import with_residual_columns
from .settings import Settings
from .two_pass import TwoPass

_FLOAT, _INT8 = 1, 4  # MatMulNBits's accuracy_level: how it sees its activations


class Linears:
    """Emits x·Wᵀ + b for one layer, or for several of the same x as one product.

    No activation is rounded to int8 alone: 4-bit codes are multiplied in float32, 8-bit ones in
    two passes. What one pass would gain and cost on SmolLM2 stands in docs/decisions.md.
    """

    takes_residual_columns = True
    has_float_product = True  # for 4-bit codes; 8-bit ones would be dequantized in every call

    def __init__(self, graph: GraphBuilder, settings: Settings):
        self._graph = graph
        self._settings = settings
        self._two_pass = TwoPass(graph)
        self._sums: dict[tuple[str, int], Value] = {}
        self._extended: dict[tuple[str, int, int], Value] = {}

    def emit(self, name: str, layers: list[nn.Module], x: Value) -> Value:
        """x [B, L, K] → [B, L, ΣN], the layers' outputs side by side.

        The layers must be of one kind (see `kind`).
        """
        bias = self._bias(name, layers) if "bias" in layers[0] else None
        if self.is_quantized(layers[0]):
            y = self.product(name, self._codes(layers), x)
        else:
            y = self._dense(name, layers, x)
        return self._graph.op("Add", y, bias, name=f"{name}/bias") if bias else y

    def kind(self, layer: nn.Module) -> tuple:
        """Layers of equal kind can be one product."""
        bias = "bias" in layer
        if not self.is_quantized(layer):
            return (bias,)
        return layer.mode, layer.bits, layer.group_size, bias

    def is_quantized(self, layer: nn.Module) -> bool:
        """Whether the layer's codes go into the graph."""
        return self._settings.quantized and "scales" in layer

    def table_codes(self, layer: nn.Module) -> NBits:
        """The codes of a table: nothing is added to its rows, which are looked up too."""
        return from_layer(layer, container_bits(layer, self._settings.weights))

    def stored_codes(self, name: str, matrix: NBits) -> tuple[Value, Value]:
        """Initializers: packed codes [N, G, bytes] and scales [N, G]."""
        codes = self._graph.array(f"{name}.weight", matrix.codes)
        return codes, self._graph.array(f"{name}.scales", matrix.scales)

    def product(
        self,
        name: str,
        matrix: NBits,
        x: Value,
        *,
        stored: tuple[Value, Value] | None = None,
    ) -> Value:
        """x times a quantized matrix, whose codes and scales may be in the graph already."""
        in_float = self._settings.exact or (self.has_float_product and matrix.bits == 4)
        inputs = x if in_float else self._two_pass.split(x, matrix.block)
        if matrix.sum_copies:
            inputs = self._with_group_sums(inputs, matrix.block, matrix.sum_copies)
        y = self._multiply(name, matrix, inputs, stored, in_float)
        if not in_float:
            y = self._two_pass.join(name, y)
        if matrix.inexact if self._settings.exact else matrix.needs_residual:
            y = self._graph.op("Add", y, self._residual_product(name, matrix, x))
        return y

    def _multiply(
        self,
        name: str,
        matrix: NBits,
        x: Value,
        stored: tuple[Value, Value] | None,
        in_float: bool,
    ) -> Value:
        """The product itself: one node."""
        codes, scales = stored or self.stored_codes(name, matrix)
        zero_points = None
        if not matrix.symmetric:
            even = np.pad(matrix.zero_points, ((0, 0), (0, matrix.zero_points.shape[1] % 2)))
            packed = pack(even if matrix.bits == 4 else matrix.zero_points, matrix.bits)
            zero_points = self._graph.array(f"{name}.zero_points", packed)  # [N, bytes]
        return self._graph.op(
            "MatMulNBits",
            x,
            codes,
            scales,
            zero_points,
            domain=CONTRIB,
            name=f"{name}/MatMulNBits",
            K=matrix.columns,
            N=matrix.rows,
            bits=matrix.bits,
            block_size=matrix.block,
            accuracy_level=_FLOAT if in_float else _INT8,
        )

    def _codes(self, layers: list[nn.Module]) -> NBits:
        """The quantized layers' rows, one below the other, with columns for their residuals."""
        bits = container_bits(layers[0], self._settings.weights)
        matrix = stack([from_layer(layer, bits) for layer in layers])
        if self._settings.exact or not self.takes_residual_columns:
            return matrix
        return with_residual_columns(matrix) if matrix.needs_residual else matrix

    def _residual_product(self, name: str, matrix: NBits, x: Value) -> Value:
        """The residual's part of the product, in float32."""
        residual = np.ascontiguousarray(matrix.residual.T)  # [G, N]
        weight = self._graph.array(f"{name}.residual", residual)
        sums = self._group_sums(x, matrix.block)
        return self._graph.op("MatMul", sums, weight, name=f"{name}/residual")

    def _dense(self, name: str, layers: list[nn.Module], x: Value) -> Value:
        weights = [dense_weight(layer) for layer in layers]
        mx.eval(weights)  # each is read in several slices
        shape = (weights[0].shape[1], sum(weight.shape[0] for weight in weights))
        dtype = self._settings.dtype
        weight = self._graph.weight(
            f"{name}.weight",
            dtype,
            shape,
            lambda: floats.transposed_rows(name, weights, dtype),
        )
        return self._graph.op("MatMul", x, weight, name=f"{name}/MatMul")

    def _bias(self, name: str, layers: list[nn.Module]) -> Value:
        joined = mx.concatenate([layer.bias for layer in layers])
        array = floats.float_array(name, joined, self._settings.dtype)
        return self._graph.array(f"{name}.bias", array)

    def _group_sums(self, x: Value, block: int) -> Value:
        """x [B, L, K] → the sums of its blocks [B, L, G]; computed once for each x."""
        key = (x.name, block)
        if key not in self._sums:
            blocks = self._graph.op("Reshape", x, self._graph.ints(0, 0, -1, block))
            self._sums[key] = self._graph.op("ReduceSum", blocks, self._graph.ints(3), keepdims=0)
        return self._sums[key]

    def _with_group_sums(self, x: Value, block: int, copies: int) -> Value:
        """[x, copies of its group sums] [B, L, K + copies·G]; computed once for each x."""
        key = (x.name, block, copies)
        if key not in self._extended:
            sums = [self._group_sums(x, block)] * copies
            self._extended[key] = self._graph.op("Concat", x, *sums, axis=-1)
        return self._extended[key]
