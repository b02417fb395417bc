"""Mixture-of-experts MLPs: X experts side by side, a router, and how a token's are chosen.

Routing (arXiv:1701.06538, arXiv:2401.04088): scores = softmax or sigmoid of the router's logits
[.., X]; the `per_token` best are chosen, by score plus a correction where there is one
(arXiv:2408.15664), within the best groups where there are groups (arXiv:2412.19437); their scores,
without the correction, weigh the outputs.
"""

import mlx.core as mx
import mlx.nn as nn

from .config import Experts, ModelConfig
from .ops import Ops, Value


class ExpertLinear(nn.Module):
    """X linear layers; weight [X, out, in], bias [X, out]."""

    def __init__(self, count: int, inputs: int, outputs: int, bias: bool):
        super().__init__()
        self.weight = mx.zeros((count, outputs, inputs))
        if bias:
            self.bias = mx.zeros((count, outputs))


class StackedExperts(nn.Module):
    """The experts' gated MLPs, stacked."""

    def __init__(self, config: ModelConfig, spec: Experts):
        super().__init__()
        hidden, width = config.hidden_size, spec.feed_forward
        self.gate_proj = ExpertLinear(spec.count, hidden, width, spec.bias)
        self.up_proj = ExpertLinear(spec.count, hidden, width, spec.bias)
        self.down_proj = ExpertLinear(spec.count, width, hidden, spec.bias)


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
