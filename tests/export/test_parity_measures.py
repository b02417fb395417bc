"""The measures of `pippin parity` against torch's, and what counts as holding."""

import math

import numpy as np
import pytest
import torch

from pippin.apps import parity


@pytest.fixture
def pair():
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((150, 40)).astype(np.float32) * 3
    ours = reference + rng.standard_normal((150, 40)).astype(np.float32) * 0.5
    return ours, reference, rng.integers(0, 40, 150).tolist()


def test_distances_equal_those_of_torch(pair):
    ours, reference, ids = pair
    log_q, log_p = (torch.log_softmax(torch.tensor(x).double(), -1) for x in (ours, reference))
    kl = torch.nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    losses = [
        torch.nn.functional.nll_loss(x[:-1], torch.tensor(ids[1:])).item() for x in (log_q, log_p)
    ]
    got = parity.distances(ours, reference, ids)
    assert got["mean KL"] == pytest.approx(kl.item(), rel=1e-9)
    assert got["perplexity change"] == pytest.approx(abs(math.exp(losses[0] - losses[1]) - 1))
    same = (log_q.argmax(-1) == log_p.argmax(-1)).double().mean().item()
    assert got["top-1 agreement"] == pytest.approx(same)


def test_equal_logits_are_no_distance_apart(pair):
    _, reference, ids = pair
    assert parity.distances(reference, reference, ids) == {
        "mean KL": 0.0,
        "top-1 agreement": 1.0,
        "perplexity change": 0.0,
    }


@pytest.mark.parametrize(
    ("measure", "value", "limit", "ok"),
    [
        ("max logit difference", 1e-4, 1e-4, True),
        ("max logit difference", 1.1e-4, 1e-4, False),
        ("max logit difference", math.nan, 1e-4, False),
        ("top-1 agreement", 0.98, 0.98, True),
        ("top-1 agreement", 0.97, 0.98, False),
        ("top-1 agreement", math.nan, 0.98, False),
        ("equal greedy tokens", 127, 128, False),
    ],
)
def test_when_a_row_holds(measure, value, limit, ok):
    assert parity.Row("a vs b", measure, value, limit).ok is ok
