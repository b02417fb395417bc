"""Routing and mixing: MLX, numpy and a choice token by token in plain Python agree."""

import math
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model import mlx_experts, numpy_experts
from pippin.mlx_model.config import Experts
from pippin.mlx_model.dense import dense_weight
from pippin.mlx_model.experts import ExpertLinear
from pippin.mlx_model.mlx_ops import MlxOps
from pippin.mlx_model.numpy_ops import NumpyOps

# Few values, so that scores are often equal; their sums of two are not, in any precision.
LOGITS = (-2.3, -1.1, 0.4, 1.7, 2.9, -40.0)
CORRECTIONS = (0.0, 0.13, -0.27)


@st.composite
def routings(draw):
    """A spec, logits [T, X] and a correction [X] or None."""
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    size = draw(st.integers(2 if groups > 1 else 1, 6))
    chosen_groups = draw(st.integers(1, groups))
    spec = Experts(
        count=groups * size,
        per_token=draw(st.integers(1, chosen_groups * size)),
        feed_forward=4,
        score=draw(st.sampled_from(["softmax", "sigmoid"])),
        renormalise=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        correction=draw(st.booleans()),
        groups=groups,
        chosen_groups=chosen_groups,
    )
    tokens = draw(st.integers(1, 4))
    cells = st.lists(
        st.sampled_from(LOGITS), min_size=tokens * spec.count, max_size=tokens * spec.count
    )
    logits = np.array(draw(cells), np.float32).reshape(tokens, spec.count)
    # One for all experts of a group: otherwise sums of two would be equal but for rounding.
    width = groups if groups > 1 else size
    corrections = st.lists(st.sampled_from(CORRECTIONS), min_size=width, max_size=width)
    correction = None
    if spec.correction:
        correction = np.repeat(np.array(draw(corrections), np.float32), spec.count // width)
    return spec, logits, correction


def route_one(logits, spec, correction):
    """One token's experts and weights, from the definition."""
    if spec.score == "sigmoid":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    else:
        total = sum(math.exp(x) for x in logits)
        scores = [math.exp(x) / total for x in logits]
    ranked = [s + c for s, c in zip(scores, correction, strict=True)]
    size = spec.count // spec.groups
    groups = [range(g * size, (g + 1) * size) for g in range(spec.groups)]
    if spec.groups > 1:
        groups.sort(key=lambda group: -sum(sorted((ranked[e] for e in group), reverse=True)[:2]))
    allowed = sorted(e for group in groups[: spec.chosen_groups] for e in group)
    chosen = sorted(allowed, key=lambda e: -ranked[e])[: spec.per_token]
    weights = [scores[e] for e in chosen]
    total = sum(weights) + 1e-20 if spec.renormalise else 1.0  # as DeepSeek-V3's code has it
    return chosen, [spec.scale * w / total for w in weights]


@settings(max_examples=150, deadline=None)
@given(routings())
def test_routing_is_the_definition_of_equals_the_lower(case):
    spec, logits, correction = case
    added = [0.0] * spec.count if correction is None else correction.tolist()
    wanted = [route_one(row, spec, added) for row in logits.tolist()]
    found = {
        "MLX": mlx_experts.route(
            mx.array(logits), spec, None if correction is None else mx.array(correction)
        ),
        "numpy": numpy_experts.route(logits, spec, correction),
    }
    for who, (chosen, weights) in found.items():
        assert np.array(chosen).tolist() == [experts for experts, _ in wanted], who
        np.testing.assert_allclose(np.array(weights), [w for _, w in wanted], 2e-5, 1e-12, who)


def test_scores_are_float32_whatever_the_logits_are():
    """In bfloat16 a softmax over 4 equal logits and one that is higher by 1/256 is a tie."""
    logits = mx.array([[0.0, 0.0, 0.0, 1 / 256, 0.0]], mx.bfloat16)
    chosen, weights = mlx_experts.route(logits, Experts(5, 1, 4, renormalise=False), None)
    assert chosen.tolist() == [[3]]
    assert weights.dtype == mx.float32


@pytest.mark.parametrize("tokens", [1, 21, 22, 40])  # 3 experts each: sorted from 64 rows on
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_gate"])
@pytest.mark.parametrize("bias", [False, True])
def test_mixing_is_what_numpy_says(bias, activation, tokens):
    rng = np.random.default_rng(tokens)
    layer = mixture(rng, bias, activation)
    spec = replace(SPEC, bias=bias)
    x = rng.standard_normal((1, tokens, 32)).astype(np.float32)
    found = np.array(MlxOps().experts(layer, spec, mx.array(x)))
    wanted = NumpyOps().experts(layer, spec, x.astype(np.float64))
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


SPEC = Experts(count=8, per_token=3, feed_forward=64, router_bias=True)


def mixture(rng, bias, activation):
    """A `SparseMLP` with random weights, without a model around it."""

    def stacked(inputs, outputs):
        layer = ExpertLinear(SPEC.count, inputs, outputs, bias)
        for name in layer:
            spread = 3.0 if name == "bias" else 4.0 / inputs**0.5  # beyond the gate's limit of 7
            layer[name] = mx.array(
                spread * rng.standard_normal(layer[name].shape).astype(np.float32)
            )
        return layer

    experts = nn.Module()
    experts.gate_proj, experts.up_proj = stacked(32, 64), stacked(32, 64)
    experts.down_proj = stacked(64, 32)
    experts.activation = activation
    layer = nn.Module()
    layer.gate = nn.Linear(32, SPEC.count)
    layer.gate.weight = mx.array(rng.standard_normal((SPEC.count, 32)).astype(np.float32))
    layer.experts = experts
    return layer


FORMATS = [("affine", bits, 32) for bits in (2, 3, 4, 5, 6, 8)]
FORMATS += [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_quantized_experts_multiply_by_what_their_codes_mean(mode, bits, group, ordered):
    rng = np.random.default_rng(bits)
    plain = ExpertLinear(4, 64, 24, bias=True)
    plain.weight = mx.array(rng.standard_normal((4, 24, 64)).astype(np.float32))
    plain.bias = mx.array(rng.standard_normal((4, 24)).astype(np.float32))
    layer = plain.to_quantized(group_size=group, bits=bits, mode=mode)
    chosen = mx.array([0, 0, 2, 3, 3])
    x = mx.array(rng.standard_normal((5, 1, 64)).astype(np.float32))
    found = np.array(layer(x, chosen, ordered))
    weight, bias = np.array(dense_weight(layer)), np.array(plain.bias)
    wanted = [
        np.array(row) @ weight[expert].T + bias[expert]
        for row, expert in zip(x, chosen.tolist(), strict=True)
    ]
    assert np.abs(found - np.stack(wanted)).max() <= 1e-5 * np.abs(wanted).max()
    assert ("biases" in layer) == (mode == "affine")
