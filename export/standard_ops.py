"""The dialect `standard`: operators of ONNX itself, opset 23, and nothing else.

Attention gets an explicit mask and RotaryEmbedding explicit positions, both made from
`attention_mask`, so padding may stand on either side. The cache grows by concatenation.
"""

import mlx.core as mx
import numpy as np
from onnx import TensorProto, helper

from ..kernels.spec import AttentionSpec
from ..mlx_model.positions import Alibi, Position, RopeConfig
from ..runtime.errors import InputError
from .base_ops import LayerCache, OnnxOps, Operand, Sum
from .builder import Value
from .dequantized import DequantizedLinears


class StandardOps(OnnxOps):
    """See `base_ops`; `attention_mask` is [B, S], 1 for tokens and 0 for padding."""

    linears_type = DequantizedLinears

    def begin(self) -> None:
        pass

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
        if sinks is not None:
            raise InputError(
                "the model's attention has sinks, which ONNX's Attention has not; "
                "export it with the dialect gqa"
            )
        q, k = self.value(q), self.value(k)
        if isinstance(position, RopeConfig):
            q = self._rotated(f"{cache.name}/q", q, position, spec.heads)
            k = self._rotated(f"{cache.name}/k", k, position, spec.kv_heads)
        node = f"{cache.name}/Attention"
        output = f"{node}.out"
        softcap = {} if spec.softcap is None else {"softcap": spec.softcap}
        self.graph.node(
            "Attention",
            [q, k, self.value(v), self._mask(spec, position), cache.past_key, cache.past_value],
            [output, cache.present_key, cache.present_value],
            name=node,
            q_num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
            **softcap,
        )
        return Value(output, self.settings.dtype)

    def _rotated(self, name: str, x: Value, rope: RopeConfig, heads: int) -> Value:
        partial = {} if rope.dims == self.config.head_dim else {"rotary_embedding_dim": rope.dims}
        return self.graph.op(
            "RotaryEmbedding",
            x,
            *self.rotation(rope),
            self.rotated_positions(rope),
            name=f"{name}/RotaryEmbedding",
            num_heads=heads,
            interleaved=int(rope.interleaved),
            **partial,
        )

    def _mask(self, spec: AttentionSpec, position: Position) -> Value:
        """Which key each row sees, bool [B, 1, L, S]; with ALiBi what scores get [B, H, L, S]."""
        seen = self.once(("seen", spec.window), lambda: self._visible(spec.window))
        if not isinstance(position, Alibi):
            return seen
        return self.once(("mask", spec.window), lambda: self._biased(seen, position))

    def _biased(self, seen: Value, alibi: Alibi) -> Value:
        dtype = self.settings.dtype
        lowest = float(np.finfo(helper.tensor_dtype_to_np_dtype(dtype)).min)
        bias = self.alibi(alibi)
        return self.graph.op("Where", seen, bias, self.number(lowest, dtype), dtype=dtype)

    def _visible(self, window: int | None) -> Value:
        """Tokens up to the row's own, `window` of them, and always itself, bool [B, 1, L, S].

        The last is for rows of padding, where a softmax over nothing would give NaN, which spreads.
        """
        graph, truth = self.graph, TensorProto.BOOL
        zero, one = (graph.constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        end = graph.op("Squeeze", self.total(), graph.ints(0))
        first = graph.op("Sub", end, graph.op("Squeeze", self.length(), graph.ints(0)))
        keys = graph.op("Range", zero, end, one)  # [S]
        rows = graph.op("Unsqueeze", graph.op("Range", first, end, one), graph.ints(1))  # [L, 1]
        near = graph.op("LessOrEqual", keys, rows, dtype=truth)  # [L, S]
        if window is not None:
            oldest = graph.op("Sub", rows, graph.ints(window))
            near = graph.op("And", near, graph.op("Greater", keys, oldest, dtype=truth))
        own = graph.op("Equal", keys, rows, dtype=truth)
        tokens = graph.op("Cast", self.attention_mask, dtype=truth, to=truth)
        tokens = graph.op("Unsqueeze", tokens, graph.ints(1, 2))  # [B, 1, 1, S]
        return graph.op("Or", graph.op("And", near, tokens), own)

    def _norm(self, name: str, x: Value, weight: Value, eps: float) -> Value:
        return self.graph.op("RMSNormalization", x, weight, name=f"{name}/RMSNorm", epsilon=eps)

    def _sum_norm(self, name: str, x: Sum, weight: Value, eps: float) -> Value:
        return self._norm(name, self.value(x), weight, eps)

    def _sigmoid_gate(self, x: Value, alpha: float) -> Value:
        scaled = x if alpha == 1.0 else self.scale(x, alpha)
        return self.graph.op("Mul", x, self.graph.op("Sigmoid", scaled))
