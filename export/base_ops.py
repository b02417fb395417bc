"""The decoder's operations as ONNX nodes: what both dialects share.

The third interpreter of `mlx_model/ops.py`: while the forward runs, it appends fused nodes to a
graph. Three kinds of values are not emitted at once, because what they become depends on who uses
them: a residual sum (one node with the norm that follows), the parts of a projection (one product,
where attention takes all three), and the rotation tables.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.nn as nn
import numpy as np
from onnx import TensorProto

from ..kernels.spec import AttentionSpec
from ..mlx_model.decoder import Decoder
from ..mlx_model.positions import RopeConfig, rope_tables
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
        self.settings = settings
        self._names = {id(module): path for path, module in decoder.named_modules()}
        self._linears = self.linears_type(graph, settings)
        self._tables = Tables(graph, settings, self._linears)
        self._num_logits = inputs.num_logits
        self._rotations: dict[RopeConfig, tuple[Value, Value]] = {}
        self._done = done
        self.begin(inputs.ids, inputs.attention_mask)

    @abstractmethod
    def begin(self, ids: Value, attention_mask: Value) -> None:
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

    def rms_norm(self, layer: nn.RMSNorm, x: Operand) -> Value:
        name = self._names[id(layer)]
        scale = floats.float_array(name, layer.weight, self.settings.dtype)
        weight = self.graph.array(f"{name}.weight", scale)
        self._done(layer)
        if isinstance(x, Sum) and x.value is None:
            return self._sum_norm(name, x, weight, layer.eps)
        return self._norm(name, self.value(x), weight, layer.eps)

    @abstractmethod
    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        spec: AttentionSpec,
        rope: RopeConfig,
        cache: LayerCache,
    ) -> Value:
        """See `mlx_model.ops.Ops.attention`; also defines the cache's present outputs."""

    def gated(self, activation: str, gate: Operand, up: Operand) -> Value:
        if activation != "silu":
            raise NotImplementedError(activation)
        gate, up = self.value(gate), self.value(up)
        return self.graph.op("Mul", self._silu(gate), up)

    def add(self, x: Operand, y: Operand) -> Sum:
        return Sum(self.value(x), self.value(y))

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

    def rotation(self, rope: RopeConfig) -> tuple[Value, Value]:
        """The cos and sin tables [context, D/2], once for each kind of rotation."""
        if rope not in self._rotations:
            number = f"_{len(self._rotations)}" if self._rotations else ""
            kind = np.float16 if self.settings.dtype == TensorProto.FLOAT16 else np.float32
            cos, sin = (
                self.graph.array(f"{name}_cache{number}", table.astype(kind))
                for name, table in zip(
                    ("cos", "sin"), rope_tables(rope, self.settings.context), strict=True
                )
            )
            self._rotations[rope] = cos, sin
        return self._rotations[rope]

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
    def _silu(self, x: Value) -> Value:
        """x·sigmoid(x)."""


def _joined_name(names: list[str]) -> str:
    """a.q_proj, a.k_proj, a.v_proj → a.qkv_proj."""
    prefix, _, last = names[0].rpartition(".")
    ending = last[last.rindex("_") :]
    stems = (name.rpartition(".")[2].removesuffix(ending) for name in names)
    return f"{prefix}.{''.join(stems)}{ending}"
