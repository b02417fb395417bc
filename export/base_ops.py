"""The decoder's operations as ONNX nodes: what both dialects share.

The third interpreter of `mlx_model/ops.py`: while the forward runs, it appends fused nodes to a
graph. Three kinds of values are not emitted at once, because what they become depends on who uses
them: a residual sum (one node with the norm that follows), the parts of a projection (one product,
where attention takes all three), and the rotation tables.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from onnx import TensorProto, helper

from ..kernels.spec import AttentionSpec
from ..mlx_model.activations import CLAMPED_GATE, GATE_LIMIT, GELU_QUICK
from ..mlx_model.config import Experts
from ..mlx_model.decoder import Decoder
from ..mlx_model.dense import dense_weight
from ..mlx_model.norms import PlusOneRMSNorm
from ..mlx_model.positions import Position
from . import floats
from .builder import GraphBuilder, Value
from .linear import Linears
from .looped_experts import LoopedExperts
from .position_ops import Inputs, PositionOps
from .settings import Settings
from .tables import Tables

_END = np.iinfo(np.int64).max  # "to the end", for Slice


Done = Callable[[nn.Module], None]


@dataclass(frozen=True)
class LayerCache:
    """One layer's KV cache as the graph's inputs and outputs name it."""

    index: int
    past_key: Value  # [B, K, P, D], P tokens before this call
    past_value: Value

    @property
    def name(self) -> str:
        return f"model.layers.{self.index}.self_attn"

    @property
    def present_key(self) -> str:
        return f"present.{self.index}.key"

    @property
    def present_value(self) -> str:
        return f"present.{self.index}.value"


@dataclass
class Sum:
    """A residual sum that the following norm may compute as a by-product."""

    x: Value
    y: Value
    value: Value | None = None  # once computed


@dataclass(eq=False)
class Projection:
    """Linear layers of the same x, not emitted yet."""

    layers: Sequence[nn.Module]
    x: Value
    parts: list["Part"] = field(default_factory=list)


@dataclass(eq=False)
class Part:
    """One output of a projection."""

    projection: Projection
    index: int


Operand = Value | Sum | Part


class OnnxOps(PositionOps, ABC):
    """Fulfils `mlx_model.ops.Ops`. `done` is called with each layer that is in the graph."""

    linears_type = Linears
    experts_type = LoopedExperts

    def __init__(
        self, graph: GraphBuilder, decoder: Decoder, settings: Settings, inputs: Inputs, done: Done
    ):
        super().__init__(graph, settings, inputs)
        self.config = decoder.config
        self._names = {id(module): path for path, module in decoder.named_modules()}
        self._linears = self.linears_type(graph, settings)
        self._tables = Tables(graph, settings, self._linears)
        self._num_logits = inputs.num_logits
        self._done = done
        self._experts = self.experts_type(graph, settings, self._linears, self.gated, done)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Emit what all layers share, from ids [B, L] and attention_mask [B, S]."""

    def embed(self, table: nn.Module, ids: Value) -> Value:
        rows = self._tables.embed(self._names[id(table)], table, ids)
        self._done(table)
        return rows

    def linear(self, layer: nn.Module, x: Operand) -> Value:
        return self._emit(self._names[id(layer)], [layer], self.value(x))

    def project(self, layers: Sequence[nn.Module], x: Operand) -> tuple[Part, ...]:
        projection = Projection(layers, self.value(x))
        projection.parts = [Part(projection, index) for index in range(len(layers))]
        return tuple(projection.parts)

    def add_positions(self, table: nn.Module, offset: int, x: Operand, cache: LayerCache) -> Value:
        name = self._names[id(table)]
        used = slice(offset, offset + self.settings.context)
        rows = floats.float_array(name, dense_weight(table, used), self.settings.dtype)
        weight = self.graph.array(f"{name}.weight", rows)
        self._done(table)
        added = self.graph.op("Gather", weight, self.positions(), name=f"{name}/Gather")
        return self.graph.op("Add", self.value(x), added)

    def norm(self, layer: nn.Module, x: Operand) -> Value:
        name = self._names[id(layer)]
        if isinstance(layer, nn.LayerNorm):
            return self._layer_norm(name, layer, self.value(x))
        weight = self._norm_weight(name, layer)
        if isinstance(x, Sum) and x.value is None:
            return self._sum_norm(name, x, weight, layer.eps)
        return self._norm(name, self.value(x), weight, layer.eps)

    def head_norm(self, layer: nn.Module, x: Operand, heads: int) -> Value:
        graph, name = self.graph, self._names[id(layer)]
        split = graph.op("Reshape", self.value(x), graph.ints(0, 0, heads, -1))  # [B, L, heads, D]
        if layer.weight.ndim == 1:
            normed = self.norm(layer, split)
        else:
            normed = self._each_head_norm(name, layer, split)
        return graph.op("Reshape", normed, graph.ints(0, 0, -1))

    def _each_head_norm(self, name: str, layer: nn.Module, x: Value) -> Value:
        """Heads with weights [heads, D] of their own: a norm without a weight, then they."""
        ones = np.ones(layer.weight.shape[-1], helper.tensor_dtype_to_np_dtype(x.dtype))
        plain, weight = self.graph.constant(ones), self._norm_weight(name, layer)
        if isinstance(layer, nn.LayerNorm):
            normed = self._emit_layer_norm(name, x, plain, None, layer.eps)
        else:
            normed = self._norm(name, x, plain, layer.eps)
        return self.graph.op("Mul", normed, weight)

    def _norm_weight(self, name: str, layer: nn.Module) -> Value:
        weight = layer.weight.astype(mx.float32)
        if isinstance(layer, PlusOneRMSNorm):
            weight = weight + 1.0
        self._done(layer)
        return self.graph.array(
            f"{name}.weight", floats.float_array(name, weight, self.settings.dtype)
        )

    def _layer_norm(self, name: str, layer: nn.LayerNorm, x: Value) -> Value:
        bias = None
        if "bias" in layer:
            array = floats.float_array(name, layer.bias, self.settings.dtype)
            bias = self.graph.array(f"{name}.bias", array)
        return self._emit_layer_norm(name, x, self._norm_weight(name, layer), bias, layer.eps)

    def _emit_layer_norm(
        self, name: str, x: Value, weight: Value, bias: Value | None, eps: float
    ) -> Value:
        node = "LayerNormalization"
        return self.graph.op(
            node, x, weight, bias, name=f"{name}/{node}", axis=-1, epsilon=eps, stash_type=1
        )

    @abstractmethod
    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        spec: AttentionSpec,
        position: Position,
        cache: LayerCache,
        sinks: mx.array | None = None,
    ) -> Value:
        """See `mlx_model.ops.Ops.attention`; also defines the cache's present outputs."""

    def experts(self, layer: nn.Module, spec: Experts, x: Operand) -> Value:
        x = self.value(x)
        name, logits = self._names[id(layer.experts)], self.linear(layer.gate, x)
        return self._experts.emit(name, layer, spec, x, logits)

    def gated(self, activation: str, gate: Operand, up: Operand) -> Value:
        gate, up = self.value(gate), self.value(up)
        if activation == CLAMPED_GATE:
            gate = self.graph.op("Min", gate, self.number(GATE_LIMIT, gate.dtype))
            up = self.graph.op("Add", self.clip(up, GATE_LIMIT), self.number(1.0, up.dtype))
            activation = "gelu_quick"
        return self.graph.op("Mul", self.activate(activation, gate), up)

    def activate(self, activation: str, x: Operand) -> Value:
        x, graph = self.value(x), self.graph
        match activation:
            case "silu":
                return self._sigmoid_gate(x, 1.0)
            case "gelu_quick":
                return self._sigmoid_gate(x, GELU_QUICK)
            case "gelu":
                return graph.op("Gelu", x)
            case "gelu_tanh":
                return graph.op("Gelu", x, approximate="tanh")
            case "relu":
                return graph.op("Relu", x)
            case "relu2":
                positive = graph.op("Relu", x)
                return graph.op("Mul", positive, positive)
            case "sigmoid":
                return graph.op("Sigmoid", x)
        raise NotImplementedError(activation)

    def add(self, x: Operand, y: Operand) -> Sum:
        return Sum(self.value(x), self.value(y))

    def scale(self, x: Operand, factor: float) -> Value:
        x = self.value(x)
        return self.graph.op("Mul", x, self.number(factor, x.dtype))

    def multiply(self, x: Operand, y: Operand) -> Value:
        return self.graph.op("Mul", self.value(x), self.value(y))

    def clip(self, x: Operand, limit: float) -> Value:
        x = self.value(x)
        return self.graph.op("Clip", x, self.number(-limit, x.dtype), self.number(limit, x.dtype))

    def softcap(self, x: Operand, cap: float) -> Value:
        x = self.value(x)
        limit = self.number(cap, x.dtype)
        bounded = self.graph.op("Tanh", self.graph.op("Div", x, limit))
        return self.graph.op("Mul", bounded, limit)

    def select_rows(self, x: Operand) -> Value:
        # Counted from the end; −0 is the beginning, so that 0 selects all.
        start = self.graph.op("Neg", self._num_logits)
        ints = self.graph.ints
        return self.graph.op("Slice", self.value(x), start, ints(_END), ints(1))

    def unembed(self, layer: nn.Module, x: Operand) -> Value:
        logits = self._tables.unembed(self._names[id(layer)], layer, self.value(x))
        self._done(layer)
        if logits.dtype == TensorProto.FLOAT:
            return logits
        to = TensorProto.FLOAT
        return self.graph.op("Cast", logits, dtype=to, to=to)

    def value(self, x: Operand) -> Value:
        """The edge that carries `x`, emitted now if it was put off."""
        if isinstance(x, Sum):
            if x.value is None:
                x.value = self.graph.op("Add", x.x, x.y)
            return x.value
        if isinstance(x, Part):
            layer = x.projection.layers[x.index]
            return self._emit(self._names[id(layer)], [layer], x.projection.x)
        return x

    def packed(self, parts: Sequence[Operand]) -> Value | None:
        """The outputs side by side in one edge [B, L, ΣN], when they are one whole projection.

        None when they are not, when their layers are of different kinds, or when the graph is to
        have no packed products.
        """
        if not self.settings.packed or not all(isinstance(part, Part) for part in parts):
            return None
        projection = parts[0].projection
        if list(parts) != projection.parts:
            return None
        layers = list(projection.layers)
        if len({self._linears.kind(layer) for layer in layers}) > 1:
            return None
        names = [self._names[id(layer)] for layer in layers]
        return self._emit(_joined_name(names), layers, projection.x)

    def number(self, value: float, dtype: int) -> Value:
        """A constant scalar."""
        return self.graph.constant(np.array(value, helper.tensor_dtype_to_np_dtype(dtype)))

    def _emit(self, name: str, layers: list[nn.Module], x: Value) -> Value:
        y = self._linears.emit(name, layers, x)
        for layer in layers:
            self._done(layer)
        return y

    @abstractmethod
    def _norm(self, name: str, x: Value, weight: Value, eps: float) -> Value:
        """RMSNorm of x."""

    @abstractmethod
    def _sum_norm(self, name: str, x: Sum, weight: Value, eps: float) -> Value:
        """RMSNorm of a sum; sets the sum's value."""

    @abstractmethod
    def _sigmoid_gate(self, x: Value, alpha: float) -> Value:
        """x·sigmoid(alpha·x)."""


def _joined_name(names: list[str]) -> str:
    """a.q_proj, a.k_proj, a.v_proj → a.qkv_proj."""
    prefix, _, last = names[0].rpartition(".")
    ending = last[last.rindex("_") :]
    stems = (name.rpartition(".")[2].removesuffix(ending) for name in names)
    return f"{prefix}.{''.join(stems)}{ending}"
