"""Mixture-of-experts MLPs: X experts side by side, a router, and how a token's are chosen.

Routing (arXiv:1701.06538, arXiv:2401.04088): scores = softmax or sigmoid of the router's logits
[.., X]; the `per_token` best are chosen, by score plus a correction where there is one
(arXiv:2408.15664), within the best groups where there are groups (arXiv:2412.19437); their scores,
without the correction, weigh the outputs. Among equals the lower index is chosen.

A softmax over the chosen logits alone is a renormalised softmax over all.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .config import Experts, ModelConfig
from .ops import Ops, Value

# Added to the sum that chosen scores are divided by, as in DeepSeek-V3's code: sigmoids may all
# be 0.
LEAST_SUM = 1e-20


class ExpertLinear(nn.Module):
    """X linear layers; weight [X, out, in], bias [X, out]."""

    def __init__(self, count: int, inputs: int, outputs: int, bias: bool):
        super().__init__()
        self.weight = mx.zeros((count, outputs, inputs))
        if bias:
            self.bias = mx.zeros((count, outputs))

    def __call__(self, x: mx.array, experts: mx.array, ordered: bool) -> mx.array:
        """x [.., 1, in] through the layers `experts` [..] → [.., 1, out].

        `ordered`: the experts ascend, which may be faster.
        """
        weight = self.weight.swapaxes(-1, -2)
        y = mx.gather_mm(x, weight, rhs_indices=experts, sorted_indices=ordered)
        return y + self.bias[experts][..., None, :] if "bias" in self else y

    def to_quantized(self, **layout: Any) -> "QuantizedExpertLinear":
        """A quantized approximation; `layout` as in `mlx.core.quantize`."""
        return QuantizedExpertLinear(self, **layout)


class QuantizedExpertLinear(nn.Module):
    """An `ExpertLinear` whose weight is quantized along its inputs, in any of MLX's modes."""

    def __init__(self, layer: ExpertLinear, group_size: int, bits: int, mode: str = "affine"):
        super().__init__()
        self.group_size, self.bits, self.mode = group_size, bits, mode
        self.weight, self.scales, *biases = mx.quantize(layer.weight, group_size, bits, mode)
        if biases:
            (self.biases,) = biases
        if "bias" in layer:
            self.bias = layer.bias
        self.freeze()

    def __call__(self, x: mx.array, experts: mx.array, ordered: bool) -> mx.array:
        """As `ExpertLinear` does."""
        y = mx.gather_qmm(
            x,
            self.weight,
            self.scales,
            self.get("biases"),
            rhs_indices=experts,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
            sorted_indices=ordered,
        )
        return y + self.bias[experts][..., None, :] if "bias" in self else y


class StackedExperts(nn.Module):
    """The experts' gated MLPs, stacked."""

    def __init__(self, config: ModelConfig, spec: Experts):
        super().__init__()
        hidden, width = config.hidden_size, spec.feed_forward
        self.gate_proj = ExpertLinear(spec.count, hidden, width, spec.bias)
        self.up_proj = ExpertLinear(spec.count, hidden, width, spec.bias)
        self.down_proj = ExpertLinear(spec.count, width, hidden, spec.bias)
        self.activation = config.activation


class SparseMLP(nn.Module):
    """The chosen experts' weighted sum, plus a shared MLP where there is one."""

    def __init__(self, config: ModelConfig, spec: Experts, mlp: type[nn.Module]):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, spec.count, bias=spec.router_bias)
        if spec.correction:
            self.correction = mx.zeros((spec.count,))
        self.experts = StackedExperts(config, spec)
        if spec.shared:
            self.shared_expert = mlp(config, spec.shared)
        if spec.shared_gate:
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)
        self._spec = spec

    def __call__(self, ops: Ops, x: Value) -> Value:
        out = ops.experts(self, self._spec, x)  # [B, L, E]
        if not self._spec.shared:
            return out
        shared = self.shared_expert(ops, x)
        if self._spec.shared_gate:
            score = ops.activate("sigmoid", ops.linear(self.shared_expert_gate, x))  # [B, L, 1]
            shared = ops.multiply(shared, score)
        return ops.add(out, shared)
