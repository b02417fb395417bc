"""Truncations and the repetition penalty against `transformers`' own, where they mean the same."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from pippin.runtime.sampling import Sampler, SamplingParams

CASES = [
    ({"top_k": 1}, lambda: [hf.TopKLogitsWarper(1)]),
    ({"top_k": 30}, lambda: [hf.TopKLogitsWarper(30)]),
    ({"top_p": 0.9}, lambda: [hf.TopPLogitsWarper(0.9)]),
    ({"top_p": 0.3}, lambda: [hf.TopPLogitsWarper(0.3)]),
    ({"min_p": 0.1}, lambda: [hf.MinPLogitsWarper(0.1)]),
    ({"typical_p": 0.9}, lambda: [hf.TypicalLogitsWarper(0.9)]),
    ({"typical_p": 0.3}, lambda: [hf.TypicalLogitsWarper(0.3)]),
    ({"top_k": 50, "top_p": 0.8}, lambda: [hf.TopKLogitsWarper(50), hf.TopPLogitsWarper(0.8)]),
    (
        {"top_k": 200, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.8},
        lambda: [
            hf.TopKLogitsWarper(200),
            hf.TopPLogitsWarper(0.95),
            hf.MinPLogitsWarper(0.02),
            hf.TypicalLogitsWarper(0.8),
        ],
    ),
]


@pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])
@pytest.mark.parametrize(
    ("values", "warpers"), CASES, ids=lambda v: str(v)[:40] if isinstance(v, dict) else ""
)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
@pytest.mark.parametrize("seed", range(4))
def test_same_distribution(xp, values, warpers, temperature, seed):
    logits = (3 * np.random.default_rng(seed).standard_normal(1000)).astype(np.float32)
    prompt = np.random.default_rng(seed).integers(0, 1000, 50).tolist()
    params = SamplingParams(temperature=temperature, repetition_penalty=1.2, **values)
    sampler = Sampler(params, 1000, xp, prompt)
    ids, weights = sampler.distribution(sampler.penalized(xp.array(logits)))
    ids, weights = np.array(ids), np.array(weights)
    found = np.zeros(1000)
    found[ids] = weights / weights.sum()

    scores = torch.tensor(logits)[None]
    steps = [hf.RepetitionPenaltyLogitsProcessor(1.2), hf.TemperatureLogitsWarper(temperature)]
    for step in [*steps, *warpers()]:
        scores = step(torch.tensor([prompt]), scores)
    expected = torch.softmax(scores[0].double(), -1).numpy()
    assert ((found > 0) == (expected > 1e-12)).all()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_xtc_leaves_the_least_likely_of_the_good_ones(probability):
    logits = np.log(np.array([0.05, 0.4, 0.15, 0.3, 0.1], np.float32))
    params = SamplingParams(temperature=1.0, xtc_probability=probability, xtc_threshold=0.12)
    ids, weights = Sampler(params, 5, np, []).distribution(logits, x=0)
    left = set(ids[weights > 0].tolist())
    assert left == ({0, 1, 2, 3, 4} if probability == 0 else {2, 4, 0})
