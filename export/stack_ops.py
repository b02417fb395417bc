"""The operations of stacks as ONNX nodes: what the graphs of encoders and decoders share.

Attention is onnxruntime's MultiHeadAttention, which its builds for every platform have: it takes a
mask of padding, what is added to the scores, and keys and values that are at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.nn as nn
import numpy as np
from onnx import TensorProto, helper

from ..kernels.spec import AttentionSpec
from ..mlx_model.dense import dense_weight
from ..mlx_model.relative_bias import RelativeBias
from . import floats
from .base_ops import Operand
from .builder import CONTRIB, Value
from .gqa_ops import GqaOps


@dataclass(frozen=True)
class EncoderLayer:
    """Stands for a cache where nothing is kept."""

    index: int

    @property
    def name(self) -> str:
        return f"layers.{self.index}.self_attn"


@dataclass(frozen=True)
class StackCache:
    """The keys and values of a decoder's layer as inputs and outputs name them [B, H, P, D]."""

    index: int
    past_key: Value
    past_value: Value

    @property
    def name(self) -> str:
        return f"decoder.layers.{self.index}.self_attn"

    @property
    def presents(self) -> list[str]:
        return [f"present.{self.index}.decoder.{part}" for part in ("key", "value")]


@dataclass(frozen=True)
class CrossCache:
    """A layer's keys and values of the encoder's output [B, H, S, D], made before."""

    index: int
    key: Value
    value: Value

    @property
    def name(self) -> str:
        return f"decoder.layers.{self.index}.cross_attn"


class OnnxStackOps(GqaOps):
    """Fulfils `mlx_model.ops.StackOps`; `attention_mask` is [B, S] of the encoder's tokens."""

    def begin(self) -> None:
        int32 = TensorProto.INT32
        self._seen = self.graph.op("Cast", self.attention_mask, dtype=int32, to=int32)

    def relative_bias(
        self,
        table: nn.Module,
        relative: RelativeBias,
        x: Operand,
        cache: EncoderLayer | StackCache,
    ) -> Value:
        graph, name, limit = self.graph, self._names[id(table)], relative.max_distance
        values = floats.float_array(name, dense_weight(table), self.settings.dtype)
        self._done(table)
        by_distance = graph.array(f"{name}.weight", values[relative.distance_buckets()])
        keys, queries = self._places(cache)
        distances = graph.op("Sub", keys, queries)  # [L, S]
        ends = [graph.constant(np.array(end, dtype=np.int64)) for end in (-limit, limit)]
        indices = graph.op("Add", graph.op("Clip", distances, *ends), ends[1])
        rows = graph.op("Gather", by_distance, indices)  # [L, S, H]
        bias = graph.op("Transpose", rows, perm=[2, 0, 1])
        return graph.op("Unsqueeze", bias, graph.ints(0))

    def self_attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        spec: AttentionSpec,
        cache: EncoderLayer | StackCache,
        bias: Value | None,
    ) -> Value:
        qkv = [self.value(part) for part in (q, k, v)]
        if isinstance(cache, EncoderLayer):
            return self._attend(cache.name, spec, [*qkv, None, self._seen, bias])
        bias = self.once(("causal", bias), lambda: self._causal(cache, bias))
        inputs = [*qkv, None, None, bias, cache.past_key, cache.past_value]
        return self._attend(cache.name, spec, inputs, cache.presents)

    def cross_attention(
        self, q: Operand, layers: Sequence[nn.Module], spec: AttentionSpec, cache: CrossCache
    ) -> Value:
        inputs = [self.value(q), cache.key, cache.value, None, self._seen]
        return self._attend(cache.name, spec, inputs)

    def shift(self, layer: nn.Module, x: Operand) -> Value:
        name = self._names[id(layer)]
        bias = floats.float_array(name, layer.bias, TensorProto.FLOAT)  # logits are float32
        return self.graph.op("Add", self.value(x), self.graph.array(f"{name}.bias", bias))

    def select_rows(self, x: Operand) -> Value:
        return self.value(x)  # all of them

    def split(self, x: Operand, heads: int) -> Value:
        """x [B, S, H·D] → [B, H, S, D]."""
        rows = self.graph.op("Reshape", self.value(x), self.graph.ints(0, 0, heads, -1))
        return self.graph.op("Transpose", rows, perm=[0, 2, 1, 3])

    def _attend(
        self,
        name: str,
        spec: AttentionSpec,
        inputs: list[Value | None],
        presents: Sequence[str] = (),
    ) -> Value:
        node = f"{name}/MultiHeadAttention"
        output = f"{node}.out"
        self.graph.node(
            "MultiHeadAttention",
            inputs,
            [output, *presents],
            domain=CONTRIB,
            name=node,
            num_heads=spec.heads,
            scale=spec.scale,
        )
        return Value(output, self.settings.dtype)

    def _places(self, cache: EncoderLayer | StackCache) -> tuple[Value, Value]:
        """Where keys stand [S], and queries [L, 1]."""
        keys = self.once("keys", lambda: self._keys(cache))
        return keys, self.once("queries", lambda: self._queries(cache, 1))

    def _past(self, cache: EncoderLayer | StackCache) -> Value:
        """[1]: the tokens before this call."""
        if isinstance(cache, EncoderLayer):
            return self.graph.ints(0)
        key = cache.past_key
        return self.once("past", lambda: self.graph.op("Shape", key, start=2, end=3))

    def _keys(self, cache: EncoderLayer | StackCache) -> Value:
        total = self.graph.op("Add", self._past(cache), self.length())
        return self._range(self.graph.ints(0), total)

    def _queries(self, cache: EncoderLayer | StackCache, axis: int) -> Value:
        past = self._past(cache)
        rows = self._range(past, self.graph.op("Add", past, self.length()))
        return self.graph.op("Unsqueeze", rows, self.graph.ints(axis))

    def _range(self, first: Value, end: Value) -> Value:
        graph = self.graph
        first, end = (graph.op("Squeeze", bound, graph.ints(0)) for bound in (first, end))
        return graph.op("Range", first, end, graph.constant(np.array(1, dtype=np.int64)))

    def _causal(self, cache: StackCache, bias: Value | None) -> Value:
        """What hides the keys after a query, and what is added to the others [1, H or 1, L, S]."""
        graph, dtype = self.graph, self.settings.dtype
        keys, queries = self._places(cache)
        near = graph.op("LessOrEqual", keys, queries, dtype=TensorProto.BOOL)
        near = graph.op("Unsqueeze", near, graph.ints(0, 1))  # [1, 1, L, S]
        lowest = float(np.finfo(helper.tensor_dtype_to_np_dtype(dtype)).min)
        seen = self.number(0.0, dtype) if bias is None else bias
        return graph.op("Where", near, seen, self.number(lowest, dtype), dtype=dtype)


class DecoderOps(OnnxStackOps):
    """The decoder's: positions are counted from the past, all rows are tokens."""

    def add_positions(self, table: nn.Module, offset: int, x: Operand, cache: StackCache) -> Value:
        # What `positions` then gives: [1, L], for all sequences alike.
        self.once("positions", lambda: self._queries(cache, 0))
        return super().add_positions(table, offset, x, cache)
