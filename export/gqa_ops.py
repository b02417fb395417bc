"""The dialect `gqa`: onnxruntime's own fused operators.

GroupQueryAttention rotates, appends to the cache in place, masks and attends in one node. It
counts positions from `attention_mask`'s sums, so a batch must be padded on the right. Padding on
the left is refused where the provider checks the bounds of indices, as the CPU does.
"""

import mlx.core as mx
from onnx import TensorProto

from ..kernels.spec import AttentionSpec
from ..mlx_model.positions import Alibi, Position, RopeConfig
from . import floats
from .base_ops import LayerCache, OnnxOps, Operand, Sum
from .builder import CONTRIB, Value
from .fused_experts import FusedExperts
from .settings import PADDED_ON_THE_LEFT


class GqaOps(OnnxOps):
    """See `base_ops`; `attention_mask` is [B, S], 1 for tokens and 0 for padding after them."""

    experts_type = FusedExperts

    def begin(self) -> None:
        graph, int32 = self.graph, TensorProto.INT32
        lengths = graph.op("ReduceSum", self.attention_mask, graph.ints(1), keepdims=0)  # [B]
        last = graph.op("Sub", lengths, self._one_unless_padded_on_the_left())
        self._last = graph.op("Cast", last, to=int32, dtype=int32)
        total = graph.op("Squeeze", self.total(), graph.ints(0))
        self._total = graph.op("Cast", total, to=int32, dtype=int32)

    def _one_unless_padded_on_the_left(self) -> Value:
        """[B]: 1; onnxruntime's CPU refuses an index out of bounds, and tells the node's name."""
        graph = self.graph
        column = graph.op("Gather", self.attention_mask, graph.ints(0), axis=1)  # [B, 1]
        padding = graph.op("Sub", graph.ints(1), graph.op("Squeeze", column, graph.ints(1)))
        return graph.op("Gather", graph.ints(1), padding, name=PADDED_ON_THE_LEFT)

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
        if isinstance(position, RopeConfig) and not self._turns_inside(position):
            q = self._rotated(f"{cache.name}/q", self.value(q), position, spec.heads)
            k = self._rotated(f"{cache.name}/k", self.value(k), position, spec.kv_heads)
            position = None
        packed = self.packed((q, k, v))
        qkv = [packed, None, None] if packed else [self.value(x) for x in (q, k, v)]
        name = f"{cache.name}/GroupQueryAttention"
        output = f"{name}.out"
        self.graph.node(
            "GroupQueryAttention",
            [
                *qkv,
                cache.past_key,
                cache.past_value,
                self._last,
                self._total,
                *self._position_inputs(position),
                self._sink_input(cache.name, sinks),
            ],
            [output, cache.present_key, cache.present_value],
            domain=CONTRIB,
            name=name,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
            **_variants(spec, position),
        )
        return Value(output, self.settings.dtype)

    def _turns_inside(self, rope: RopeConfig) -> bool:
        """Whether GroupQueryAttention takes the rotation: heads of 16 or its multiples, of which
        likewise so many dimensions turn. A head of 80 that turns by a quarter is turned before.
        """
        return self.config.head_dim % 16 == 0 and rope.dims % 16 == 0

    def _rotated(self, name: str, x: Value, rope: RopeConfig, heads: int) -> Value:
        return self.graph.op(
            "RotaryEmbedding",
            x,
            self.rotated_positions(rope),
            *self.rotation(rope),
            domain=CONTRIB,
            name=f"{name}/RotaryEmbedding",
            num_heads=heads,
            rotary_embedding_dim=rope.dims,
            interleaved=int(rope.interleaved),
        )

    def _position_inputs(self, position: Position) -> list[Value | None]:
        """cos_cache, sin_cache, position_ids and attention_bias."""
        if isinstance(position, RopeConfig):
            rows = self.rotated_positions(position) if self.shifted(position) else None
            return [*self.rotation(position), rows, None]
        if isinstance(position, Alibi):
            return [None, None, None, self.alibi(position)]
        return [None] * 4

    def _sink_input(self, name: str, sinks: mx.array | None) -> Value | None:
        if sinks is None:
            return None
        array = floats.float_array(name, sinks, self.settings.dtype)
        return self.graph.array(f"{name}.sinks", array)

    def _norm(self, name: str, x: Value, weight: Value, eps: float) -> Value:
        node = "SimplifiedLayerNormalization"
        return self.graph.op(
            node, x, weight, name=f"{name}/{node}", axis=-1, epsilon=eps, stash_type=1
        )

    def _sum_norm(self, name: str, x: Sum, weight: Value, eps: float) -> Value:
        node = f"{name}/SkipSimplifiedLayerNormalization"
        normed, x.value = Value(f"{node}.out", x.x.dtype), Value(f"{node}.sum", x.x.dtype)
        self.graph.node(
            "SkipSimplifiedLayerNormalization",
            [x.x, x.y, weight],
            [normed.name, "", "", x.value.name],
            domain=CONTRIB,
            name=node,
            epsilon=eps,
        )
        return normed

    def _sigmoid_gate(self, x: Value, alpha: float) -> Value:
        return self.graph.op("QuickGelu", x, domain=CONTRIB, alpha=alpha)


def _variants(spec: AttentionSpec, position: Position) -> dict[str, int | float]:
    """The attributes of what plain attention does not have."""
    attributes: dict[str, int | float] = {}
    if isinstance(position, RopeConfig):
        attributes["do_rotary"] = 1
        if position.interleaved:
            attributes["rotary_interleaved"] = 1
    if spec.window is not None:
        attributes["local_window_size"] = spec.window
    if spec.softcap is not None:
        attributes["softcap"] = spec.softcap
    return attributes
