"""Mixtures of experts as one node of onnxruntime's: MoE, or QMoE over quantized codes.

What its kernels for the CPU do right (release 1.32, against numpy in float64): MoE in float32 to
3e-7 of the largest value, QMoE over 4-bit codes in blocks of 32, 64 or 128 to 7e-7, both with
biases and clamped gates, with gate and up rows alternating in one tensor. They choose and weigh by
a softmax of `router_probs`, but of equals not the lower; without `normalize_routing_weights` QMoE
weighs wrongly. So they are told the choice, as logarithms of its weights, and the output is
multiplied by their sum. Over 8-bit codes QMoE rounds activations to int8, by which the next layer
chooses other experts; and it has no place for residuals of zero points. Both become further 4-bit
matrices, side by side for a repeated x, then above each other, whose outputs are added. MoE takes
no float16, and neither takes gates that are not SwiGLU: a loop does the rest.

Releases before 1.31 do not know two of QMoE's attributes, and so refuse what they would compute
wrongly (see `requirements.py`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from onnx import TensorProto

from ..mlx_model.activations import CLAMPED_GATE, GATE_LIMIT, GELU_QUICK
from ..mlx_model.config import Experts
from ..mlx_model.experts import LEAST_SUM, SparseMLP
from . import floats
from .builder import CONTRIB, Value
from .expert_weights import Stacked, dense_shape, expert_codes, expert_rows, in_four_bits
from .looped_experts import LoopedExperts
from .nbits import container_bits, pack
from .routing import Routing

_GATES: dict[str, dict[str, float]] = {
    "silu": {"activation_alpha": 1.0, "activation_beta": 0.0},
    CLAMPED_GATE: {
        "activation_alpha": GELU_QUICK,
        "activation_beta": 1.0,
        "swiglu_limit": GATE_LIMIT,
    },
}
_FLOAT32_PRODUCT = 1  # QMoE's accuracy_level
_NOTHING = -1e30  # of which the exponential is 0 beside any other


class FusedExperts(LoopedExperts):
    """`LoopedExperts` of the dialect `gqa`."""

    def emit(self, name: str, layer: SparseMLP, spec: Experts, x: Value, logits: Value) -> Value:
        graph, experts = self._graph, layer.experts
        if not self._fits(experts):
            return super().emit(name, layer, spec, x, logits)  # by a loop
        logits = self._router.flat(logits, spec)
        routing = self._router.route(name, logits, spec, layer.get("correction"))
        shares = self._logarithms(logits, routing)
        width = dense_shape(experts.down_proj)[1]
        y = self._node(name, experts, x, shares, spec.per_token)
        if spec.score == "softmax" and spec.renormalise and spec.scale == 1.0:
            return y  # the weights' sum is 1
        total = graph.op("ReduceSum", routing.weights, graph.ints(-1), keepdims=1)  # [T, 1]
        rows = graph.op("Mul", graph.op("Reshape", y, graph.ints(-1, width)), total)
        return graph.op("Reshape", rows, graph.op("Shape", x))

    def _fits(self, experts: nn.Module) -> bool:
        """Whether one node does these experts right."""
        if self._settings.dtype != TensorProto.FLOAT or experts.activation not in _GATES:
            return False
        layers = [experts.gate_proj, experts.up_proj, experts.down_proj]
        quantized = [layer for layer in layers if self._linears.is_quantized(layer)]
        if not quantized:
            return True
        alike = len({self._linears.kind(layer) for layer in layers}) == 1
        return len(quantized) == len(layers) and alike

    def _has_residual(self, experts: nn.Module, bits: int) -> bool:
        """Whether integer zero points leave over what counts, in any of the experts."""
        layers = experts.gate_proj, experts.up_proj, experts.down_proj
        matrices = (matrix for layer in layers for matrix in expert_codes([layer], bits))
        return any(m.inexact if self._settings.exact else m.needs_residual for m in matrices)

    def _logarithms(self, logits: Value, routing: Routing) -> Value:
        """What a softmax turns into the chosen experts' parts of all weight [T, X]."""
        graph = self._graph
        positive = graph.op("Add", routing.weights, graph.constant(np.array(LEAST_SUM, np.float32)))
        nothing = graph.constant(np.array(_NOTHING, np.float32))
        none = graph.op("Expand", nothing, graph.op("Shape", logits))
        return graph.op("ScatterElements", none, routing.chosen, graph.op("Log", positive), axis=1)

    def _node(
        self, name: str, experts: nn.Module, x: Value, shares: Value, per_token: int
    ) -> Value:
        """The experts' outputs, weighed by a softmax of the `per_token` best `shares` [T, X]."""
        attributes: dict[str, Any] = {
            "k": per_token,
            "activation_type": "swiglu",
            "swiglu_fusion": 1,  # gate and up rows alternate
            "normalize_routing_weights": 1,
            **_GATES[experts.activation],
        }
        quantized = self._linears.is_quantized(experts.gate_proj)
        emit = self._qmoe if quantized else self._moe
        y = emit(name, experts, x, shares, attributes)
        for layer in (experts.gate_proj, experts.up_proj, experts.down_proj):
            self._done(layer)
        return y

    def _moe(
        self, name: str, experts: nn.Module, x: Value, shares: Value, attributes: dict[str, Any]
    ) -> Value:
        inputs: list[Value | None] = []
        dtype = self._settings.dtype
        for part, layers in _parts(name, experts):
            count, rows, columns = dense_shape(layers[0])
            read = partial(expert_rows, part, layers, dtype)
            shape = (count, len(layers) * rows, columns)
            inputs.append(self._graph.weight(f"{part}.weight", dtype, shape, read))
            inputs.append(self._biases(part, layers))
        return self._graph.op(
            "MoE", x, shares, *inputs, domain=CONTRIB, name=f"{name}/MoE", **attributes
        )

    def _qmoe(
        self, name: str, experts: nn.Module, x: Value, shares: Value, attributes: dict[str, Any]
    ) -> Value:
        graph, width = self._graph, dense_shape(experts.down_proj)[1]
        bits = container_bits(experts.gate_proj, self._settings.weights)
        residual = self._has_residual(experts, bits)
        count = bits // 4 + residual  # of 4-bit matrices, the outputs of which are added
        inputs: list[Value | None] = []
        zero_points: list[Value | None] = []
        for axis, (part, layers) in zip((1, 0), _parts(name, experts), strict=True):
            *codes, zeros = self._codes(part, layers, bits, residual, axis)
            bias = self._biases(part, layers, count * width if axis == 0 else 0)
            inputs += [*codes, bias]
            zero_points.append(zeros)
        y = graph.op(
            "QMoE",
            graph.op("Concat", *[x] * count, axis=-1) if count > 1 else x,
            shares,
            *(*inputs, None, None, None, *zero_points),
            domain=CONTRIB,
            name=f"{name}/QMoE",
            expert_weight_bits=4,
            block_size=experts.gate_proj.group_size,
            accuracy_level=_FLOAT32_PRODUCT,
            weights_prepacked=0,
            **attributes,
        )
        if count == 1:
            return y
        parts = graph.op("Reshape", y, graph.ints(0, 0, count, width))
        return graph.op("ReduceSum", parts, graph.ints(2), keepdims=0)

    def _codes(
        self, name: str, layers: list[Stacked], bits: int, residual: bool, axis: int
    ) -> tuple[Value, Value, Value]:
        """Packed codes [X, N, bytes], scales [X, N, G] and zero points [X, N, bytes].

        `axis`: how the 4-bit matrices stand (see `in_four_bits`).
        """
        experts, rows, columns = dense_shape(layers[0])
        shape = [experts, len(layers) * rows, columns // 2]
        shape[1 + axis] *= bits // 4 + residual
        scales, zeros = [], []

        def codes() -> Iterator[np.ndarray]:
            for matrix in expert_codes(layers, bits):
                packed, steps, starts = in_four_bits(matrix, residual, axis)
                scales.append(steps)
                zeros.append(starts)
                yield packed

        weight = self._graph.weight(f"{name}.weight", TensorProto.UINT8, tuple(shape), codes)
        scale = self._graph.array(f"{name}.scales", np.stack(scales))
        start = np.stack(zeros)
        start = pack(np.pad(start, ((0, 0), (0, 0), (0, start.shape[2] % 2))), 4)
        return weight, scale, self._graph.array(f"{name}.zero_points", start)

    def _biases(self, name: str, layers: list[Stacked], rows: int = 0) -> Value | None:
        """The layers' biases as the rows stand [X, N], with zeros up to `rows`."""
        if "bias" not in layers[0]:
            return None
        joined = mx.stack([layer.bias for layer in layers], axis=-1).flatten(-2)
        array = floats.float_array(name, joined, self._settings.dtype)
        missing = max(rows - array.shape[1], 0)
        return self._graph.array(f"{name}.bias", np.pad(array, ((0, 0), (0, missing))))


def _parts(name: str, experts: nn.Module) -> list[tuple[str, list[Stacked]]]:
    """The node's two products: their names, and the layers whose rows they have."""
    return [
        (f"{name}.gate_up_proj", [experts.gate_proj, experts.up_proj]),
        (f"{name}.down_proj", [experts.down_proj]),
    ]
