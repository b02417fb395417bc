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
from ..mlx_model.activations import GELU_QUICK
from ..mlx_model.config import Experts
from ..mlx_model.decoder import Decoder
from ..mlx_model.norms import PlusOneRMSNorm
from ..mlx_model.positions import Alibi, Position, RopeConfig, rope_tables
from . import floats
from .builder import GraphBuilder, Value
from .linear import Linears
from .settings import Settings
from .tables import Tables

_END = np.iinfo(np.int64).max  # "to the end", for Slice


Done = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs apart from the caches."""

    ids: Value  # [B, L]
    attention_mask: Value  # [B, S]
    num_logits: Value  # [1]: how many of the last rows get logits; 0 means all
    # [1]: rotate as for a sequence of at least so many tokens; only where that makes a difference
    rotation_length: Value | None


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


class OnnxOps(ABC):
    """Fulfils `mlx_model.ops.Ops`. `done` is called with each layer that is in the graph."""

    linears_type = Linears

    def __init__(
        self, graph: GraphBuilder, decoder: Decoder, settings: Settings, inputs: Inputs, done: Done
    ):
        self.graph = graph
        self.config = decoder.config
        self.settings = settings
        self._names = {id(module): path for path, module in decoder.named_modules()}
        self._linears = self.linears_type(graph, settings)
        self._tables = Tables(graph, settings, self._linears)
        self._num_logits, self._rotation_length = inputs.num_logits, inputs.rotation_length
        self._rotations: dict[RopeConfig, tuple[Value, Value]] = {}
        self._shared: dict[object, Value] = {}  # what several layers use, see `once`
        self._done = done
        self.ids, self.attention_mask = inputs.ids, inputs.attention_mask
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
        rows = floats.float_array(name, table.weight[offset:], self.settings.dtype)
        weight = self.graph.array(f"{name}.weight", rows[: self.settings.context])
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
        weight = self._norm_weight(name, layer)
        ones = np.ones(layer.weight.shape[-1], helper.tensor_dtype_to_np_dtype(x.dtype))
        plain = self.graph.constant(ones)
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
        raise NotImplementedError

    def gated(self, activation: str, gate: Operand, up: Operand) -> Value:
        gate, up = self.value(gate), self.value(up)
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

        None when they are not, or when their layers are of different kinds.
        """
        if not all(isinstance(part, Part) for part in parts):
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

    def once(self, key: object, emit: Callable[[], Value]) -> Value:
        """What `emit` makes, which is asked only the first time that `key` is wanted."""
        if key not in self._shared:
            self._shared[key] = emit()
        return self._shared[key]

    def positions(self) -> Value:
        """Each new token's position [B, L]: the tokens before it, padding left out."""
        return self.once("positions", self._count)

    def _count(self) -> Value:
        graph = self.graph
        axis = graph.constant(np.array(1, dtype=np.int64))
        seen = graph.op("CumSum", self.attention_mask, axis)
        zero = graph.constant(np.array(0, dtype=np.int64))
        positions = graph.op("Max", graph.op("Sub", seen, graph.ints(1)), zero)  # [B, S]
        start = graph.op("Neg", self.length())
        return graph.op("Slice", positions, start, graph.ints(_END), graph.ints(1))

    def length(self) -> Value:
        """[1]: L."""
        return self.once("length", lambda: self.graph.op("Shape", self.ids, start=1, end=2))

    def total(self) -> Value:
        """[1]: S."""
        return self.once(
            "total", lambda: self.graph.op("Shape", self.attention_mask, start=1, end=2)
        )

    def rotation(self, rope: RopeConfig) -> tuple[Value, Value]:
        """The cos and sin tables [context, dims/2], once for each kind of rotation.

        Where the rotation depends on the sequence's length, the tables for short sequences stand
        before those for long ones, and `rotated_positions` says where to look.
        """
        if rope not in self._rotations:
            number = f"_{len(self._rotations)}" if self._rotations else ""
            kind = np.float16 if self.settings.dtype == TensorProto.FLOAT16 else np.float32
            context = self.settings.context
            parts = [rope_tables(rope.at(min(context, rope.switch or context)), context)]
            if self.switches(rope):
                short = [table[: rope.switch] for table in parts[0]]
                parts = [short, rope_tables(rope.at(context), context)]
            cos, sin = (
                self.graph.array(f"{name}_cache{number}", np.concatenate(tables).astype(kind))
                for name, tables in zip(("cos", "sin"), zip(*parts, strict=True), strict=True)
            )
            self._rotations[rope] = cos, sin
        return self._rotations[rope]

    def switches(self, rope: RopeConfig) -> bool:
        """Whether sequences within the context rotate in two ways."""
        return rope.switch is not None and self._rotation_length is not None

    def rotated_positions(self, rope: RopeConfig) -> Value:
        """The rows of `rotation`'s tables that the new tokens turn by, int64 [B, L]."""
        if not self.switches(rope):
            return self.positions()
        return self.once(("rows", rope.switch), lambda: self._rows_by_length(rope.switch))

    def _rows_by_length(self, switch: int) -> Value:
        graph = self.graph
        length = graph.op("Max", self.total(), self._rotation_length)
        long = graph.op("Greater", length, graph.ints(switch), dtype=TensorProto.BOOL)
        shift = graph.op("Where", long, graph.ints(switch), graph.ints(0), dtype=TensorProto.INT64)
        return graph.op("Add", self.positions(), shift)

    def alibi(self, alibi: Alibi) -> Value:
        """What ALiBi adds to the scores [1, H, 1, S], up to a constant in each row."""
        return self.once(alibi, lambda: self._emit_alibi(alibi))

    def _emit_alibi(self, alibi: Alibi) -> Value:
        graph, dtype = self.graph, self.settings.dtype
        zero, one = (graph.constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        end = graph.op("Squeeze", self.total(), graph.ints(0))
        keys = graph.op("Range", zero, end, one)
        distance = graph.op("Cast", graph.op("Sub", keys, end), dtype=dtype, to=dtype)  # ≤ 0
        slopes = np.array(alibi.slopes, helper.tensor_dtype_to_np_dtype(dtype))
        return graph.op("Mul", graph.array("alibi_slopes", slopes[None, :, None, None]), distance)

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
