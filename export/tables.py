"""The embedding table and the head; one initializer serves both where the model ties them."""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.nn as nn
import numpy as np
from onnx import TensorProto

from ..mlx_model.dense import dense_weight
from . import floats
from .builder import GraphBuilder, Value
from .linear import Linears
from .nbits import NBits
from .settings import Settings


@dataclass(frozen=True)
class _CodedTable:
    """A quantized table in the graph."""

    matrix: NBits
    stored: tuple[Value, Value]  # codes [V, G, bytes], scales [V, G]


@dataclass(frozen=True)
class _FloatTable:
    """A table in the graph as floats."""

    weight: Value
    shape: tuple[int, int]  # V, E


class Tables:
    """Looks rows up by token id, and multiplies by the same or another table for the logits."""

    def __init__(self, graph: GraphBuilder, settings: Settings, linears: Linears):
        self._graph = graph
        self._settings = settings
        self._linears = linears
        # Tables that are in the graph, by the id of their layer.
        self._floats: dict[int, _FloatTable] = {}
        self._coded: dict[int, _CodedTable] = {}

    def embed(self, name: str, table: nn.Module, ids: Value) -> Value:
        """ids [B, L] → rows [B, L, E]."""
        if self._linears.is_quantized(table):
            matrix = self._linears.table_codes(_head(name), table)
            stored = self._linears.stored_codes(name, matrix)
            self._coded[id(table)] = _CodedTable(matrix, stored)
            return self._decode(name, matrix, stored, ids)
        dtype = self._settings.dtype
        shape = (table.weight.shape[0], dense_weight(table, slice(1)).shape[1])

        def rows() -> Iterator[np.ndarray]:
            return floats.rows(name, shape, lambda part: dense_weight(table, part), dtype)

        weight = self._graph.weight(f"{name}.weight", dtype, shape, rows)
        self._floats[id(table)] = _FloatTable(weight, shape)
        return self._graph.op("Gather", weight, ids, name=f"{name}/Gather")

    def unembed(self, name: str, layer: nn.Module, x: Value) -> Value:
        """x [B, L, E] → logits [B, L, V]."""
        if id(layer) in self._coded:
            table = self._coded.pop(id(layer))
            return self._linears.product(_head(name), table.matrix, x, stored=table.stored)
        if id(layer) in self._floats:
            return self._tied_product(name, self._floats[id(layer)], x)
        return self._linears.emit(name, [layer], x)

    def _tied_product(self, name: str, table: _FloatTable, x: Value) -> Value:
        """x · tableᵀ by Gemm, which takes the table as the lookup needs it: [V, E]."""
        graph = self._graph
        vocab, width = table.shape
        rows = graph.op("Reshape", x, graph.ints(-1, width))
        logits = graph.op("Gemm", rows, table.weight, name=f"{_head(name)}/Gemm", transB=1)
        batch = graph.op("Shape", x, start=0, end=1)
        shape = graph.op("Concat", batch, graph.ints(-1, vocab), axis=0)
        return graph.op("Reshape", logits, shape)  # [B, L, V]

    def _decode(self, name: str, matrix: NBits, stored: tuple[Value, Value], ids: Value) -> Value:
        """Look up packed rows and decode them: (code − zero_point)·scale, or code·scale + bias."""
        graph = self._graph
        codes, scales = (graph.op("Gather", part, ids) for part in stored)
        groups = matrix.residual.shape[1]
        if matrix.outliers:  # whose blocks come after the row
            span = [graph.ints(0), graph.ints(groups), graph.ints(2)]
            codes, scales = (graph.op("Slice", part, *span) for part in (codes, scales))
        codes = graph.op(
            "Cast", self._unpacked(codes, matrix), dtype=TensorProto.FLOAT, to=TensorProto.FLOAT
        )  # [B, L, G, block]
        last = graph.ints(-1)
        scales = graph.op("Unsqueeze", scales, last)  # [B, L, G, 1]
        if matrix.symmetric and not (self._settings.exact and matrix.inexact):
            middle = graph.constant(np.array(1 << (matrix.bits - 1), dtype=np.float32))
            values = graph.op("Mul", graph.op("Sub", codes, middle), scales)
        else:
            zero_points = matrix.zero_points[:, :groups].astype(np.float32)
            biases = matrix.residual - matrix.scales[:, :groups] * zero_points
            table = graph.array(f"{name}.biases", biases)
            shift = graph.op("Unsqueeze", graph.op("Gather", table, ids), last)
            values = graph.op("Add", graph.op("Mul", codes, scales), shift)
        return graph.op("Reshape", values, graph.ints(0, 0, -1))

    def _unpacked(self, codes: Value, matrix: NBits) -> Value:
        """uint8 codes [B, L, G, bytes], two in a byte → one in a byte [B, L, G, block]."""
        if matrix.bits == 8:
            return codes
        graph, last = self._graph, self._graph.ints(-1)
        low = graph.op("BitwiseAnd", codes, graph.constant(np.array(0x0F, dtype=np.uint8)))
        four = graph.constant(np.array(4, dtype=np.uint8))
        high = graph.op("BitShift", codes, four, direction="RIGHT")
        pair = [graph.op("Unsqueeze", half, last) for half in (low, high)]
        both = graph.op("Concat", *pair, axis=-1)
        return graph.op("Reshape", both, graph.ints(0, 0, 0, -1))


def _head(name: str) -> str:
    """What the product with the table `name` is called."""
    return f"{name}.head"
