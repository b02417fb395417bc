"""Repetition, presence, frequency and DRY penalties against plain restatements of their rules."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime.penalties import DryPenalty
from pippin.runtime.sampling import Sampler, SamplingParams

BOTH = pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])
TOKENS = st.lists(st.integers(0, 7), max_size=12)


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    prompt=TOKENS,
    reply=TOKENS,
    repetition=st.sampled_from([1.0, 1.4, 0.6]),
    presence=st.sampled_from([0.0, 0.7]),
    frequency=st.sampled_from([0.0, -0.3]),
    last_n=st.sampled_from([None, 1, 4, 30]),
)
def test_counts(xp, prompt, reply, repetition, presence, frequency, last_n):
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        penalty_last_n=last_n,
    )
    sampler = Sampler(params, 8, xp, prompt)
    for t, token in enumerate(reply):  # make it choose `token`, whatever the penalties
        assert int(sampler(xp.where(xp.arange(8) == token, 1e6, -1e6), t)) == token
    logits = np.linspace(-2, 2, 8).astype(np.float32)
    sampler._take_last()
    found = np.array(sampler.penalized(xp.array(logits)))

    tagged = [(token, False) for token in prompt] + [(token, True) for token in reply]
    window = tagged if last_n is None else tagged[-last_n:]
    for token, value in enumerate(logits.tolist()):
        count = sum(1 for other, replied in window if replied and other == token)
        if any(other == token for other, _ in window):
            value = value / repetition if value > 0 else value * repetition
        value -= presence * (count > 0) + frequency * count
        assert found[token] == pytest.approx(value, abs=1e-5)


def dry_by_hand(tokens, multiplier, base, allowed, last_n, breakers):
    """For each earlier place, the longest common ending with the whole text; no breaker inside."""
    start = 0 if last_n is None else max(0, len(tokens) - last_n)
    tokens = tokens[start:] if last_n is None or last_n < len(tokens) else tokens
    losses = {}
    for end in range(1, len(tokens)):
        length = 0
        while length < end and tokens[end - 1 - length] == tokens[-1 - length]:
            if tokens[-1 - length] in breakers:
                break
            length += 1
        if length >= allowed:
            loss = multiplier * base ** (length - allowed)
            losses[tokens[end]] = max(losses.get(tokens[end], 0.0), loss)
    return losses


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=40),
    multiplier=st.sampled_from([0.8, 2.0]),
    base=st.sampled_from([1.0, 1.75]),
    allowed=st.integers(1, 4),
    last_n=st.sampled_from([None, 5, 20]),
    split=st.integers(0, 40),
)
def test_dry(tokens, multiplier, base, allowed, last_n, split):
    penalty = DryPenalty(
        tokens[:split],
        multiplier=multiplier,
        base=base,
        allowed_length=allowed,
        last_n=last_n,
        breakers=[[3]],
    )
    for token in tokens[split:]:
        penalty.append(token)
    ids, loss = penalty.penalties()
    found = dict(zip(ids.tolist(), loss.tolist(), strict=True))
    assert found == pytest.approx(dry_by_hand(tokens, multiplier, base, allowed, last_n, {3}))


def test_dry_stops_at_a_breaker_of_several_tokens():
    def losses(text):
        penalty = DryPenalty(
            text, multiplier=1.0, base=2.0, allowed_length=2, last_n=None, breakers=[[8, 9]]
        )
        return dict(zip(*(part.tolist() for part in penalty.penalties()), strict=True))

    assert losses([1, 2, 3, 4, 1, 2, 3]) == {4: 2.0}
    assert losses([1, 8, 9, 2, 3, 4, 1, 8, 9, 2, 3]) == {4: 1.0}  # only "2 3" counts
    assert losses([1, 8, 9, 4, 1, 8, 9]) == {}


def test_dry_stays_finite_on_one_token_for_ever():
    penalty = DryPenalty(
        [5] * 3000, multiplier=5.0, base=4.0, allowed_length=1, last_n=None, breakers=[]
    )
    ids, loss = penalty.penalties()
    assert ids.tolist() == [5]
    assert np.isfinite(loss).all()
    assert loss[0] >= 1e29


@BOTH
def test_dry_ends_a_loop(xp):
    """A model that would say 1 2 3 1 2 3 … for ever leaves it."""
    params = SamplingParams(dry_multiplier=4.0, dry_sequence_breakers=[])
    sampler = Sampler(params, 6, xp, [])
    tokens = []
    for t in range(12):
        wish = (len(tokens) % 3) + 1
        logits = xp.where(xp.arange(6) == wish, 3.0, 0.0)
        tokens.append(int(sampler(logits, t)))
    assert tokens[:5] == [1, 2, 3, 1, 2]
    assert tokens[5] != 3
