"""Mixtures of experts in operators of ONNX itself: a loop over the experts that were chosen.

The experts' weights lie in one tensor, [X, out, in]. A turn of the loop takes one expert's part
out of it and the rows of x that go through that expert, and adds what comes out to their sums.
Experts that no token has chosen cost nothing, and the graph has one body a layer, however many
experts there are.
"""

from collections.abc import Callable, Iterator

import mlx.nn as nn
import numpy as np
from onnx import TensorProto, helper

from ..mlx_model.config import Experts
from ..mlx_model.experts import SparseMLP
from . import floats
from .builder import GraphBuilder, Value
from .expert_weights import Stacked, dense_shape, expert_codes, expert_rows
from .linear import Linears
from .nbits import container_bits
from .routing import Router, Routing
from .settings import Settings

Gated = Callable[[str, Value, Value], Value]  # OnnxOps.gated
Product = Callable[[Value, Value], Value]  # rows [n, in], an expert's number → [n, out]
_FLOAT = TensorProto.FLOAT


class LoopedExperts:
    """Emits experts; `done` is called with each of their layers that is in the graph."""

    def __init__(
        self,
        graph: GraphBuilder,
        settings: Settings,
        linears: Linears,
        gated: Gated,
        done: Callable[[nn.Module], None],
    ):
        self._graph = graph
        self._settings = settings
        self._linears = linears
        self._gated = gated
        self._done = done
        self._router = Router(graph)

    def emit(self, name: str, layer: SparseMLP, spec: Experts, x: Value, logits: Value) -> Value:
        """x [B, L, E] and the router's logits [B, L, X] → the weighted sum [B, L, E]."""
        logits = self._router.flat(logits, spec)
        routing = self._router.route(name, logits, spec, layer.get("correction"))
        return self._mix(name, layer.experts, x, routing)

    def _mix(self, name: str, experts: nn.Module, x: Value, routing: Routing) -> Value:
        """The chosen experts' weighted sum, by a loop."""
        graph, width = self._graph, dense_shape(experts.down_proj)[1]
        parts = ("gate_proj", "up_proj", "down_proj")
        gate, up, down = (self._product(f"{name}.{part}", experts[part]) for part in parts)
        tokens = graph.op("Reshape", x, graph.ints(-1, width))
        flat = graph.op("Reshape", routing.chosen, graph.ints(-1))
        hit = graph.op("Unique", flat, sorted=1)  # each chosen expert once

        def add(turn: Value, sums: Value) -> Value:
            """What one expert adds to the sums of its rows."""
            expert = graph.op("Gather", hit, turn)
            mine = graph.op("Equal", routing.chosen, expert, dtype=TensorProto.BOOL)
            places = graph.op("NonZero", mine, dtype=TensorProto.INT64)  # [2, n]
            weights = graph.op("GatherND", routing.weights, graph.op("Transpose", places))
            rows = graph.op("Gather", places, graph.constant(np.array(0)))
            inputs = graph.op("Gather", tokens, rows)
            hidden = self._gated(experts.activation, gate(inputs, expert), up(inputs, expert))
            out = self._cast(down(hidden, expert), _FLOAT)
            out = graph.op("Mul", out, graph.op("Unsqueeze", weights, graph.ints(1)))
            rows = graph.op("Unsqueeze", rows, graph.ints(1))
            return graph.op("ScatterND", sums, rows, out, reduction="add")

        none = graph.op(
            "Mul", self._cast(tokens, _FLOAT), graph.constant(np.array(0.0, np.float32))
        )
        turns = graph.op("Squeeze", graph.op("Shape", hit), graph.ints(0))
        sums = self._cast(self._loop(name, turns, none, add), x.dtype)
        return graph.op("Reshape", sums, graph.op("Shape", x))

    def _loop(
        self, name: str, turns: Value, state: Value, body: Callable[[Value, Value], Value]
    ) -> Value:
        """Run `body(turn, state)` so many times; it gives the next state."""
        graph, node = self._graph, f"{name}/Loop"
        turn, before = Value(f"{node}.turn", TensorProto.INT64), Value(f"{node}.state", state.dtype)
        go = Value(f"{node}.go", TensorProto.BOOL)
        inputs = [
            helper.make_tensor_value_info(value.name, value.dtype, shape)
            for value, shape in ((turn, ()), (go, ()), (before, None))
        ]

        def emit() -> list[Value]:
            return [graph.op("Identity", go), body(turn, before)]

        one = graph.branch(f"{node}.body", emit, inputs)
        return graph.op("Loop", turns, None, state, dtype=state.dtype, name=node, body=one)

    def _product(self, name: str, layer: Stacked) -> Product:
        """Put the layer's weights into the graph; what multiplies by one expert's."""
        quantized = self._linears.is_quantized(layer)
        read = (self._stored_codes if quantized else self._stored_floats)(name, layer)
        bias = None
        if "bias" in layer:
            array = floats.float_array(name, layer.bias, self._settings.dtype)
            bias = self._graph.array(f"{name}.bias", array)
        self._done(layer)

        def multiply(x: Value, expert: Value) -> Value:
            added = self._graph.op("Gather", bias, expert) if bias else None
            return self._graph.op("Gemm", x, read(expert), added, transB=1)

        return multiply

    def _stored_floats(self, name: str, layer: Stacked) -> Callable[[Value], Value]:
        shape, dtype = dense_shape(layer), self._settings.dtype
        weight = self._graph.weight(
            f"{name}.weight", dtype, shape, lambda: expert_rows(name, [layer], dtype)
        )
        return lambda expert: self._graph.op("Gather", weight, expert)

    def _stored_codes(self, name: str, layer: Stacked) -> Callable[[Value], Value]:
        """Codes, and for each group the scale and what is added: w = code·scale + offset."""
        graph, (count, rows, columns) = self._graph, dense_shape(layer)
        bits = container_bits(layer, self._settings.weights)
        scales, offsets = [], []

        def codes() -> Iterator[np.ndarray]:
            for matrix in expert_codes([layer], bits):
                scales.append(matrix.scales)
                offsets.append(matrix.residual - matrix.scales * matrix.zero_points)
                yield matrix.codes

        shape = (count, rows, columns * bits // 8)
        packed = graph.weight(f"{name}.weight", TensorProto.UINT8, shape, codes)
        scale = graph.array(f"{name}.scales", np.stack(scales)[..., None])
        offset = graph.array(
            f"{name}.offsets", np.stack(offsets).astype(np.float32)[..., None]
        )  # [X, N, G, 1]

        def read(expert: Value) -> Value:
            code, step, start = (graph.op("Gather", v, expert) for v in (packed, scale, offset))
            if bits == 4:
                code = self._unpacked(code)
            blocks = graph.ints(rows, -1, layer.group_size)
            code = graph.op("Reshape", self._cast(code, _FLOAT), blocks)
            values = graph.op("Add", graph.op("Mul", code, step), start)
            return graph.op("Reshape", values, graph.ints(0, -1))

        return read

    def _unpacked(self, codes: Value) -> Value:
        """Two codes in a byte [N, K/2] → [N, K/2, 2]."""
        graph, last = self._graph, self._graph.ints(-1)
        low = graph.op("BitwiseAnd", codes, graph.constant(np.array(0x0F, np.uint8)))
        four = graph.constant(np.array(4, np.uint8))
        high = graph.op("BitShift", codes, four, direction="RIGHT")
        return graph.op("Concat", *(graph.op("Unsqueeze", x, last) for x in (low, high)), axis=-1)

    def _cast(self, x: Value, to: int) -> Value:
        return x if x.dtype == to else self._graph.op("Cast", x, to=to, dtype=to)
