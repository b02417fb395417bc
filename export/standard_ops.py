"""The dialect `standard`: operators of ONNX itself, opset 23, and nothing else.

Attention gets an explicit mask and RotaryEmbedding explicit positions, both made from
`attention_mask`, so padding may stand on either side. The cache grows by concatenation.
"""

import numpy as np
from onnx import TensorProto

from ..kernels.spec import AttentionSpec
from ..mlx_model.positions import RopeConfig
from .base_ops import LayerCache, OnnxOps, Operand, Sum
from .builder import Value
from .dequantized import DequantizedLinears

_END = np.iinfo(np.int64).max


class StandardOps(OnnxOps):
    """See `base_ops`; `attention_mask` is [B, S], 1 for tokens and 0 for padding."""

    linears_type = DequantizedLinears

    def begin(self, ids: Value, attention_mask: Value) -> None:
        graph = self.graph
        length = graph.op("Shape", ids, start=1, end=2)  # [1]: L
        total = graph.op("Shape", attention_mask, start=1, end=2)  # [1]: S
        self._positions = self._count(attention_mask, length)
        self._mask = self._visible(attention_mask, length, total)

    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        spec: AttentionSpec,
        rope: RopeConfig,
        cache: LayerCache,
    ) -> Value:
        turned = [
            self.graph.op(
                "RotaryEmbedding",
                self.value(x),
                *self.rotation(rope),
                self._positions,
                name=f"{cache.name}/{label}/RotaryEmbedding",
                num_heads=heads,
            )
            for label, x, heads in (("q", q, spec.heads), ("k", k, spec.kv_heads))
        ]
        node = f"{cache.name}/Attention"
        output = f"{node}.out"
        self.graph.node(
            "Attention",
            [*turned, self.value(v), self._mask, cache.past_key, cache.past_value],
            [output, cache.present_key, cache.present_value],
            name=node,
            q_num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
        )
        return Value(output, self.settings.dtype)

    def _count(self, attention_mask: Value, length: Value) -> Value:
        """Each new token's position [B, L]: the tokens before it, padding left out."""
        graph = self.graph
        seen = graph.op("CumSum", attention_mask, graph.constant(np.array(1, dtype=np.int64)))
        zero = graph.constant(np.array(0, dtype=np.int64))
        positions = graph.op("Max", graph.op("Sub", seen, graph.ints(1)), zero)  # [B, S]
        start = graph.op("Neg", length)
        return graph.op("Slice", positions, start, graph.ints(_END), graph.ints(1))

    def _visible(self, attention_mask: Value, length: Value, total: Value) -> Value:
        """Which key each row sees, bool [B, 1, L, S]: tokens up to its own, and always itself.

        The last is for rows of padding, where a softmax over nothing would give NaN, which spreads.
        """
        graph, truth = self.graph, TensorProto.BOOL
        zero, one = (graph.constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        end = graph.op("Squeeze", total, graph.ints(0))
        first = graph.op("Sub", end, graph.op("Squeeze", length, graph.ints(0)))
        keys = graph.op("Range", zero, end, one)  # [S]
        rows = graph.op("Unsqueeze", graph.op("Range", first, end, one), graph.ints(1))  # [L, 1]
        causal = graph.op("LessOrEqual", keys, rows, dtype=truth)  # [L, S]
        own = graph.op("Equal", keys, rows, dtype=truth)
        tokens = graph.op("Cast", attention_mask, dtype=truth, to=truth)
        tokens = graph.op("Unsqueeze", tokens, graph.ints(1, 2))  # [B, 1, 1, S]
        return graph.op("Or", graph.op("And", causal, tokens), own)

    def _norm(self, name: str, x: Value, weight: Value, eps: float) -> Value:
        return self.graph.op("RMSNormalization", x, weight, name=f"{name}/RMSNorm", epsilon=eps)

    def _sum_norm(self, name: str, x: Sum, weight: Value, eps: float) -> Value:
        return self._norm(name, self.value(x), weight, eps)

    def _silu(self, x: Value) -> Value:
        return self.graph.op("Mul", x, self.graph.op("Sigmoid", x))
