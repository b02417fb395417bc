"""The dialect `gqa`: onnxruntime's own fused operators.

GroupQueryAttention rotates, appends to the cache in place, masks and attends in one node. It
counts positions from `attention_mask`'s sums, so a batch must be padded on the right.
"""

from onnx import TensorProto

from ..kernels.spec import AttentionSpec
from ..mlx_model.positions import RopeConfig
from .base_ops import LayerCache, OnnxOps, Operand, Sum
from .builder import CONTRIB, Value


class GqaOps(OnnxOps):
    """See `base_ops`; `attention_mask` is [B, S], 1 for tokens and 0 for padding after them."""

    def begin(self, ids: Value, attention_mask: Value) -> None:
        graph, int32 = self.graph, TensorProto.INT32
        lengths = graph.op("ReduceSum", attention_mask, graph.ints(1), keepdims=0)  # [B]
        last = graph.op("Sub", lengths, graph.ints(1))
        self._last = graph.op("Cast", last, to=int32, dtype=int32)
        shape = graph.op("Shape", attention_mask, start=1, end=2)
        total = graph.op("Squeeze", shape, graph.ints(0))
        self._total = graph.op("Cast", total, to=int32, dtype=int32)

    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        spec: AttentionSpec,
        rope: RopeConfig,
        cache: LayerCache,
    ) -> Value:
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
                *self.rotation(rope),
            ],
            [output, cache.present_key, cache.present_value],
            domain=CONTRIB,
            name=name,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
            do_rotary=1,
        )
        return Value(output, self.settings.dtype)

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

    def _silu(self, x: Value) -> Value:
        return self.graph.op("QuickGelu", x, domain=CONTRIB, alpha=1.0)
