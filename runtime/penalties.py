"""Penalties on tokens that occurred before: repetition, presence, frequency and DRY."""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

Array = Any

_LARGEST_PENALTY = 1e30  # finite, and far beyond any logit


class CountPenalties:
    """Repetition, presence and frequency penalties over the last `last_n` tokens (None: all).

    Repetition (Keskar et al. 2019, CTRL) looks at prompt and reply: a logit above 0 is divided by
    the penalty, one below is multiplied. Presence and frequency look at the reply alone: they are
    subtracted once, and once for every occurrence. Counts stay in arrays of `xp`, and tokens are
    never read, so that a device can run ahead of the host.
    """

    def __init__(
        self,
        xp: ModuleType,
        vocab_size: int,
        prompt: Sequence[int],
        *,
        repetition: float,
        presence: float,
        frequency: float,
        last_n: int | None,
    ) -> None:
        self._xp = xp
        self._repetition, self._presence, self._frequency = repetition, presence, frequency
        recent = list(prompt) if last_n is None else list(prompt)[-last_n:]
        counts = np.bincount(np.array(recent, dtype=np.int64), minlength=vocab_size)
        self._all = xp.array(counts.astype(np.int32))
        self._reply = xp.zeros((vocab_size,), dtype=xp.int32)
        self._last_n = last_n
        self._prompt_left = len(recent)  # tokens of the prompt still inside the window
        self._window: deque[Any] = deque(recent if last_n is not None else ())

    def append(self, token: Array) -> None:
        """Count `token`, a 0-d array of `xp`, as part of the reply."""
        self._all = self._add(self._all, token, 1)
        self._reply = self._add(self._reply, token, 1)
        if self._last_n is None:
            return
        self._window.append(token)
        if len(self._window) > self._last_n:
            oldest = self._window.popleft()
            self._all = self._add(self._all, oldest, -1)
            if self._prompt_left > 0:
                self._prompt_left -= 1
            else:
                self._reply = self._add(self._reply, oldest, -1)

    def apply(self, logits: Array) -> Array:
        """Penalized logits [V]."""
        xp = self._xp
        if self._repetition != 1.0:
            scaled = xp.where(logits > 0, logits / self._repetition, logits * self._repetition)
            logits = xp.where(self._all > 0, scaled, logits)
        if self._presence != 0.0:
            logits = logits - self._presence * (self._reply > 0).astype(xp.float32)
        if self._frequency != 0.0:
            logits = logits - self._frequency * self._reply.astype(xp.float32)
        return logits

    def _add(self, counts: Array, token: Any, amount: int) -> Array:
        if self._xp is np:
            counts[token] += amount
            return counts
        return counts.at[token].add(amount)


class DryPenalty:
    """DRY: against repeating a passage word by word.

    Where the last n tokens also stand earlier in the text, n >= `allowed_length`, the token that
    followed there loses `multiplier * base ** (n - allowed_length)`. A sequence breaker ends every
    passage. Only the last `last_n` tokens count (None: all). The history is read on the host.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int | None,
        breakers: Sequence[Sequence[int]],
    ) -> None:
        self._multiplier, self._base, self._allowed = multiplier, base, allowed_length
        self._last_n = last_n
        self._single = {breaker[0] for breaker in breakers if len(breaker) == 1}
        self._longer = [array("q", breaker) for breaker in breakers if len(breaker) > 1]
        self._longest = allowed_length + _growth_steps(multiplier, base)
        self._tokens = array("q")
        self._passage = 0  # tokens since the last breaker
        for token in prompt:
            self.append(token)

    def append(self, token: int) -> None:
        """Take `token` into the history."""
        self._tokens.append(token)
        ends = token in self._single or any(
            self._tokens[-len(breaker) :] == breaker for breaker in self._longer
        )
        self._passage = 0 if ends else self._passage + 1

    def penalties(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct ids, and what each loses (float32), for the next token."""
        tokens = np.frombuffer(self._tokens, dtype=np.int64)
        if self._last_n is not None:
            tokens = tokens[-self._last_n :]
        limit = min(self._passage, len(tokens) - 1, self._longest)
        if limit < self._allowed:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        lengths = _suffix_matches(tokens, limit)
        ends = np.flatnonzero(lengths >= self._allowed)
        followers = tokens[ends + 1]
        ids, place = np.unique(followers, return_inverse=True)
        longest = np.zeros(len(ids), np.int64)
        np.maximum.at(longest, place, lengths[ends])
        loss = self._multiplier * self._base ** (longest - self._allowed).astype(np.float64)
        return ids, np.minimum(loss, _LARGEST_PENALTY).astype(np.float32)


def _growth_steps(multiplier: float, base: float) -> int:
    """Steps after which the penalty has reached its largest value; longer matches add nothing."""
    if base == 1.0 or multiplier == 0.0:
        return 0
    steps = math.log(_LARGEST_PENALTY / multiplier) / math.log(base)
    return max(math.ceil(min(steps, 2**31)), 0)


def _suffix_matches(tokens: np.ndarray, limit: int) -> np.ndarray:
    """For each position but the last, how many tokens up to it equal the end of `tokens`.

    Counted up to `limit`.
    """
    lengths = np.zeros(len(tokens) - 1, np.int64)
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    for length in range(1, limit + 1):
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[-1 - length]]
        if not len(ends):
            break
    return lengths
