"""The sampler: one token for one seed on numpy and MLX, and the distributions it draws from."""

import math
import tracemalloc

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pippin.runtime.philox import token_draws
from pippin.runtime.sampling import Sampler, SamplingParams

BOTH = pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 0.8, 1.0, 1.7, 50.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    typical_p=st.sampled_from([1.0, 0.9, 0.2]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.05, 0.3, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    penalty_last_n=st.sampled_from([None, 1, 5]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.8]),
    dry_sequence_breakers=st.sampled_from([[[0]], [[1, 2]]]),
    logit_bias=st.sampled_from([{}, {1: 4.0, 2: -math.inf}]),
    seed=st.integers(0, 2**64 - 1),
)


def make_logits(seed: int, size: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = (4 * rng.standard_normal(size)).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits / 2)
    if kind == "holes":
        logits[rng.random(size) < 0.3] = -np.inf
        logits[rng.integers(size)] = np.nan
    if kind == "flat":
        logits[:] = 1.5
    return logits


# Derandomized: exp may differ in its last bit between the two, which 1 draw in 10^6 would show.
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    params=PARAMS,
    size=st.sampled_from([3, 17, 500]),
    kind=st.sampled_from(["plain", "ties", "holes", "flat"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_numpy_and_mlx_choose_the_same_tokens(params, size, kind, seed):
    prompt = np.random.default_rng(seed).integers(0, size, 7).tolist()
    ours, theirs = Sampler(params, size, np, prompt), Sampler(params, size, mx, prompt)
    for t in range(6):
        logits = make_logits(seed + t, size, kind)
        kept = logits.copy()
        chosen = int(ours(logits, t))
        assert chosen == int(theirs(mx.array(logits), t))
        assert -1 <= chosen < size
        np.testing.assert_array_equal(logits, kept)  # the caller's array is left alone


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.8, 1.7, 50.0]),
        top_k=st.sampled_from([0, 0, 0, 5, 40]),
        top_p=st.sampled_from([1.0, 0.95, 0.5]),
        min_p=st.sampled_from([0.0, 0.0, 0.001, 0.05]),
        typical_p=st.sampled_from([1.0, 1.0, 0.9]),
        xtc_probability=st.sampled_from([0.0, 0.0, 0.5]),
        seed=st.integers(0, 2**64 - 1),
    ),
    size=st.sampled_from([17, 3000]),
    kind=st.sampled_from(["plain", "ties", "flat"]),
)
def test_the_few_tokens_ranked_on_the_host_decide_as_all_do(params, size, kind):
    sampler = Sampler(params, size, np, [1, 2])
    for t in range(6):
        logits = make_logits(params.seed % 2**32 + t, size, kind)
        u, x = token_draws(params.seed, 0, t)
        ids, weights = sampler.distribution(sampler.penalized(logits), x)
        bound = int(weights.sum()) * u >> 32
        assert int(sampler(logits, t)) == ids[np.searchsorted(np.cumsum(weights), bound, "right")]


def reference(logits: np.ndarray, p: SamplingParams) -> dict[int, float]:
    """Steps 5 and 6 in float64, in plain words: id -> probability."""
    scaled = logits.astype(np.float64) / p.temperature
    probabilities = np.exp(scaled - scaled.max())
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = [(i, probabilities[i]) for i in order][: p.top_k or None]
    kept = nucleus(kept, p.top_p)
    kept = [(i, w) for i, w in kept if w >= p.min_p * kept[0][1]]
    if p.typical_p < 1:
        kept = normalized(kept)
        entropy = -sum(w * math.log(w) for _, w in kept if w)
        nearest = sorted(kept, key=lambda item: abs(-math.log(item[1] or 1e-300) - entropy))
        kept = nucleus(nearest, p.typical_p)
    return dict(normalized(kept))


def normalized(items):
    total = sum(w for _, w in items)
    return [(i, w / total) for i, w in items]


def nucleus(items, p):
    if p >= 1:
        return items
    items, kept, mass = normalized(items), [], 0.0
    for item in items:
        assume(abs(mass - p) > 1e-5)  # where float32 may fall on either side
        if mass >= p:
            break
        kept.append(item)
        mass += item[1]
    return kept


@BOTH
@settings(max_examples=150, deadline=None, derandomize=True)
@given(params=PARAMS, seed=st.integers(0, 2**32 - 1))
def test_the_distribution_is_that_of_the_definitions(xp, params, seed):
    temperature = max(params.temperature, 0.3)
    params = SamplingParams(
        temperature=temperature,
        top_k=params.top_k,
        top_p=max(params.top_p, 0.05),
        min_p=params.min_p,
        typical_p=params.typical_p,
    )
    logits = make_logits(seed, 200, "plain")
    expected = reference(logits, params)
    sampler = Sampler(params, 200, xp, [])
    ids, weights = (np.array(part) for part in sampler.distribution(xp.array(logits)))
    total = weights.sum()
    drawn = {int(i): w / total for i, w in zip(ids, weights, strict=True) if w}
    assert sum(abs(drawn.get(i, 0.0) - w) for i, w in expected.items()) < 1e-5
    assert sum(w for i, w in drawn.items() if i not in expected) < 1e-5


@BOTH
def test_a_draw_inverts_the_cumulative_distribution(xp):
    logits = make_logits(1, 300, "plain")
    order = sorted(range(300), key=lambda i: (-logits[i], i))
    probabilities = np.exp(logits[order].astype(np.float64))
    upper = np.cumsum(probabilities / probabilities.sum())
    sampler = Sampler(SamplingParams(temperature=1.0, seed=9), 300, xp, [], sequence=4)
    for t in range(300):
        u = token_draws(9, 4, t)[0] / 2**32
        place = order.index(int(sampler(xp.array(logits), t)))
        assert (upper[place - 1] if place else 0.0) - 1e-6 <= u <= upper[place] + 1e-6


def test_frequencies_of_draws_are_the_probabilities():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.07, 0.03], np.float32))
    sampler = Sampler(SamplingParams(temperature=1.0, seed=5), 5, np, [])
    counts = np.bincount([int(sampler(logits, t)) for t in range(4000)], minlength=5)
    expected = 4000 * np.array([0.4, 0.3, 0.2, 0.07, 0.03])
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi square, 4 degrees, p = 0.001


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-4])
def test_equal_logits_go_to_the_lowest_id(xp, temperature):
    logits = np.array([1, 7, 7, 2, 7], np.float32)
    greedy = Sampler(SamplingParams(temperature=temperature, top_k=1), 5, xp, [])
    assert int(greedy(xp.array(logits), 0)) == 1


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"min_p": 0.1},
        {"top_k": 3},
        {"top_p": 0.5, "typical_p": 0.5},
        {"xtc_probability": 1.0, "repetition_penalty": 1.1, "dry_multiplier": 1.0},
    ],
)
def test_nothing_to_choose_from(xp, temperature, values):
    for value in (np.nan, -np.inf):
        params = SamplingParams(temperature=temperature, dry_sequence_breakers=[], seed=1, **values)
        sampler = Sampler(params, 9, xp, [1, 2, 1])
        assert int(sampler(xp.full((9,), value, dtype=xp.float32), 0)) == -1


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_only_number_among_nan_and_infinities(xp, temperature):
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), 4, xp, [])
    assert int(sampler(xp.array([np.nan, -np.inf, -5.0, np.nan], dtype=xp.float32), 0)) == 2
    overflown = xp.array([3e38, np.inf, -3e38, 0.0], dtype=xp.float32)
    assert int(sampler(overflown, 1)) in ((0, 1) if temperature else (0,))


@BOTH
def test_banning_by_bias_holds_at_any_temperature(xp):
    logits = xp.array([9.0, 1.0, 0.0], dtype=xp.float32)
    for temperature in (0.0, 5.0):
        params = SamplingParams(temperature=temperature, logit_bias={0: -math.inf}, seed=2)
        sampler = Sampler(params, 3, xp, [])
        assert 0 not in {int(sampler(logits, t)) for t in range(50)}


def test_mlx_tokens_are_never_read():
    """Inside a traced function any evaluation raises; all but DRY must run on traced arrays."""
    params = SamplingParams(
        temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, typical_p=0.9, seed=3,
        xtc_probability=0.5, repetition_penalty=1.2, frequency_penalty=0.5, penalty_last_n=8,
        logit_bias={5: 1.0},
    )  # fmt: skip

    def three_steps(logits):
        sampler = Sampler(params, 100, mx, [1, 2, 3])
        return [sampler(logits[t], t) for t in range(3)]

    logits = np.stack([make_logits(t, 100, "plain") for t in range(3)])
    sampler = Sampler(params, 100, np, [1, 2, 3])
    expected = [int(sampler(row, t)) for t, row in enumerate(logits)]
    assert [int(token) for token in mx.compile(three_steps)(mx.array(logits))] == expected


def test_a_step_on_the_host_takes_no_memory_of_the_vocabulary_s_size():
    size = 50_000
    logits = make_logits(0, size, "plain")
    sampler = Sampler(SamplingParams(temperature=0.7, top_p=0.9, seed=1), size, np, [])
    sampler(logits, 0)
    tracemalloc.start()
    for t in range(1, 30):
        sampler(logits, t)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size
