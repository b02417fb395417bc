"""Linear layers as ONNX nodes: MatMul over floats, MatMulNBits over MLX's packed codes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..mlx_model.dense import dense_weight
from . import floats
from .builder import CONTRIB, GraphBuilder, Value
from .nbits import NBits, container_bits, from_layer, pack, stack
from .outliers import with_outlier_columns
from .product_inputs import Inputs
from .residual import with_residual_columns
from .settings import PORTABLE, QUICK, Settings

_FLOAT, _INT8 = 1, 4  # MatMulNBits's accuracy_level: how it sees its activations


class Linears:
    """Emits x·Wᵀ + b for one layer, or for several of the same x as one product.

    4-bit codes are multiplied in float32, 8-bit ones in two passes of int8. `Settings.outliers`
    makes a second, quick variant of the graph, with one pass of int8 throughout. What each costs
    and gains on SmolLM2 stands in docs/decisions.md.
    """

    takes_more_columns = True
    has_float_product = True  # for 4-bit codes; 8-bit ones would be dequantized in every call

    def __init__(self, graph: GraphBuilder, settings: Settings):
        self._graph = graph
        self._settings = settings
        self._inputs = {variant: Inputs(graph) for variant in (None, PORTABLE, QUICK)}
        self._zeros: dict[str, Value] = {}

    def emit(self, name: str, layers: list[nn.Module], x: Value) -> Value:
        """x [B, L, K] → [B, L, ΣN], the layers' outputs side by side.

        The layers must be of one kind (see `kind`).
        """
        bias = self._bias(name, layers) if "bias" in layers[0] else None
        if self.is_quantized(layers[0]):
            return self.product(name, self._codes(name, layers), x, bias=bias)
        y = self._dense(name, layers, x)
        return y if bias is None else self._add_bias(name, y, bias)

    def kind(self, layer: nn.Module) -> tuple:
        """Layers of equal kind can be one product."""
        bias = "bias" in layer
        if not self.is_quantized(layer):
            return (bias,)
        return layer.mode, layer.bits, layer.group_size, bias

    def is_quantized(self, layer: nn.Module) -> bool:
        """Whether the layer's codes go into the graph."""
        return self._settings.quantized and "scales" in layer

    def table_codes(self, name: str, layer: nn.Module) -> NBits:
        """The codes of a table, which is looked up and, if it is tied, multiplied by `name`."""
        matrix = from_layer(layer, container_bits(layer, self._settings.weights))
        return self._with_outliers(name, matrix, in_table=True)

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
        bias: np.ndarray | None = None,
    ) -> Value:
        """x times a quantized matrix, whose codes and scales may be in the graph already."""
        in_table, plain = stored is not None, self._passes(matrix)
        if self._settings.outliers is None:
            y = self._rounded(name, matrix, x, stored, plain, in_table=in_table)
        else:
            stored = stored or self.stored_codes(name, matrix)
            for variant, passes in ((PORTABLE, plain), (QUICK, 1)):
                with self._graph.variant(variant):
                    y = self._rounded(name, matrix, x, stored, passes, variant, in_table=in_table)
                    y = self._graph.renamed(y, f"{name}.out")
        if matrix.inexact if self._settings.exact else matrix.needs_residual:
            y = self._graph.op("Add", y, self._residual_product(name, matrix, x))
        return y if bias is None else self._add_bias(name, y, bias)

    def _passes(self, matrix: NBits) -> int:
        """How often a graph for everyone multiplies int8 activations; 0 for float32 ones."""
        in_float = self.has_float_product and matrix.bits == 4
        return 0 if self._settings.exact or in_float else 2

    def _rounded(
        self,
        name: str,
        matrix: NBits,
        x: Value,
        stored: tuple[Value, Value] | None,
        passes: int,
        variant: str | None = None,
        *,
        in_table: bool,
    ) -> Value:
        """The product, with x in float32 or in int8, once or twice."""
        inputs, twice = self._inputs[variant], passes == 2
        y = inputs.prepare(x, matrix, twice=twice, in_table=in_table)
        y = self._multiply(name, matrix, y, stored, in_float=not passes)
        return inputs.join(name, y) if twice else y

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
        return self._graph.op(
            "MatMulNBits",
            x,
            codes,
            scales,
            self._zero_points(name, matrix),
            domain=CONTRIB,
            name=f"{name}/MatMulNBits",
            K=matrix.columns,
            N=matrix.rows,
            bits=matrix.bits,
            block_size=matrix.block,
            accuracy_level=_FLOAT if in_float else _INT8,
        )

    def _zero_points(self, name: str, matrix: NBits) -> Value | None:
        """An initializer [N, bytes]; None where they are the operator's default."""
        if matrix.symmetric:
            return None
        if name not in self._zeros:
            even = np.pad(matrix.zero_points, ((0, 0), (0, matrix.zero_points.shape[1] % 2)))
            packed = pack(even if matrix.bits == 4 else matrix.zero_points, matrix.bits)
            self._zeros[name] = self._graph.array(f"{name}.zero_points", packed)
        return self._zeros[name]

    def _codes(self, name: str, layers: list[nn.Module]) -> NBits:
        """The quantized layers' rows, one below the other, with all the columns that they need."""
        bits = container_bits(layers[0], self._settings.weights)
        matrix = stack([from_layer(layer, bits) for layer in layers])
        if self._settings.exact or not self.takes_more_columns:
            return matrix
        if matrix.needs_residual:
            matrix = with_residual_columns(matrix)
        return self._with_outliers(name, matrix, in_table=False)

    def _with_outliers(self, name: str, matrix: NBits, *, in_table: bool) -> NBits:
        channels = (self._settings.outliers or {}).get(name)
        return with_outlier_columns(matrix, channels, in_table=in_table) if channels else matrix

    def _residual_product(self, name: str, matrix: NBits, x: Value) -> Value:
        """The residual's part of the product, in float32."""
        residual = np.ascontiguousarray(matrix.residual.T)  # [G, N]
        weight = self._graph.array(f"{name}.residual", residual)
        sums = self._inputs[None].group_sums(x, matrix.block)
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

    def _bias(self, name: str, layers: list[nn.Module]) -> np.ndarray:
        """The layers' biases, one after the other [ΣN]."""
        joined = mx.concatenate([layer.bias for layer in layers])
        return floats.float_array(name, joined, self._settings.dtype)

    def _add_bias(self, name: str, y: Value, bias: np.ndarray) -> Value:
        array = self._graph.array(f"{name}.bias", bias)
        return self._graph.op("Add", y, array, name=f"{name}/bias")
