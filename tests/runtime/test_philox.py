"""Philox4x64-10 against Random123's known answers and numpy's implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.runtime.philox import philox4x64, token_draws

WORD = st.integers(0, 2**64 - 1)
ONES = 2**64 - 1

# Random123, tests/kat_vectors, lines "philox4x64 10"
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert philox4x64(counter, key) == answer


@given(t=st.integers(1, 2**40), seed=WORD, sequence=WORD)
def test_numpy_agrees(t, seed, sequence):
    key = np.array([seed, sequence], np.uint64)
    theirs = np.random.Philox(counter=t - 1, key=key).random_raw(4)
    assert philox4x64((t, 0, 0, 0), (seed, sequence)) == tuple(int(word) for word in theirs)


def test_a_token_draws_the_upper_halves_of_the_first_two_words():
    assert token_draws(0, 0, 0) == (0x16554D9E, 0xDB20FE9D)


def test_seed_sequence_and_token_each_change_the_draw():
    draws = {token_draws(*key) for key in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]}
    assert len(draws) == 4
