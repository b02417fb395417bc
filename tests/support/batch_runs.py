"""A batch beside lone sessions of the same engine: whatever happens, both must say the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from pippin.runtime.batch import SequentialBatch
from pippin.runtime.errors import InputError

KINDS = ("open", "prefill", "step", "step", "step", "rollback", "fork", "close")
ACTIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 10**6)), min_size=4, max_size=40
)


class BatchRun:
    """Pairs of a session of the batch and a lone one, of the same tokens."""

    def __init__(self, engine: Any, slots: int, tolerance: float, capacity: int = 8):
        self.engine, self.tolerance = engine, tolerance
        self.batch = engine.open_batch(slots, capacity)
        self.pairs: list[tuple[Any, Any]] = []
        self.stepped = 0  # rows that were compared

    def act(self, kind: str, seed: int) -> None:
        """One action; what of it is left open, `seed` decides."""
        rng = np.random.default_rng(seed)
        if kind == "open":
            if len(self.pairs) < self.batch.slots:
                self.pairs.append((self.batch.open(), self.engine.open()))
        elif self.pairs:
            pair = self.pairs[rng.integers(len(self.pairs))]
            getattr(self, f"_{kind}")(rng, pair)
        for session, lone in self.pairs:
            assert session.length == lone.length

    def step(self, pairs: Sequence[tuple[Any, Any]], tokens: Sequence[int]) -> None:
        rows = self.batch.step([session for session, _ in pairs], tokens)
        assert rows.shape == (len(pairs), self.engine.info.vocab_size)
        for row, (_, lone), token in zip(rows, pairs, tokens, strict=True):
            self._same(row, lone.step(token))
        self.stepped += len(pairs)

    def _step(self, rng, _) -> None:
        context = self.engine.info.context
        able = [pair for pair in self.pairs if pair[0].length < context]
        chosen = rng.permutation(len(able))[: rng.integers(1, len(self.pairs) + 1)]
        if len(chosen):
            self.step([able[index] for index in chosen], self._tokens(rng, len(chosen)))

    def _prefill(self, rng, pair) -> None:
        room = self.engine.info.context - pair[0].length
        if room:
            tokens = self._tokens(rng, min(int(rng.choice([1, 3, 30, 90])), room))
            self._same(*(session.prefill(tokens) for session in pair))

    def _rollback(self, rng, pair) -> None:
        length = int(rng.integers(pair[0].length + 1))
        for session in pair:
            session.rollback(length)

    def _fork(self, _, pair) -> None:
        if len(self.pairs) < self.batch.slots and hasattr(pair[0], "slot"):
            self.pairs.append(tuple(session.fork() for session in pair))

    def _close(self, _, pair) -> None:
        self.batch.close(pair[0])
        self.pairs.remove(pair)

    def _tokens(self, rng, count: int) -> list[int]:
        return rng.integers(0, self.engine.info.vocab_size, count).tolist()

    def _same(self, ours: Any, wanted: Any) -> None:
        ours, wanted = np.array(ours), np.array(wanted)
        assert np.abs(ours - wanted).max() <= self.tolerance * np.abs(wanted).max()


def check_full(engine: Any, kind: type) -> None:
    """A batch of `kind` refuses more than its slots; a slot that is free again is empty."""
    batch = engine.open_batch(2, 8)
    first, second = _opened(batch)
    with pytest.raises(InputError, match="all 2 slots of the batch are taken"):
        batch.open()
    if kind is not SequentialBatch:
        for session in (first, second):
            with pytest.raises(InputError, match="all 2 slots"):
                session.fork()
    batch.close(first)
    again = batch.open()
    assert (again.length, second.length) == (0, 4)
    batch.step([again, second], [1, 2])


def check_closed(engine: Any, kind: type) -> None:
    """Nothing can be done with a session that a batch of `kind` has closed."""
    batch = engine.open_batch(2, 8)
    gone, stays = _opened(batch)
    batch.close(gone)
    uses = [lambda: batch.step([stays, gone], [1, 2]), lambda: batch.close(gone)]
    if kind is not SequentialBatch:
        uses += [
            lambda: gone.step(1),
            lambda: gone.prefill([1]),
            lambda: gone.verify([1, 2]),
            lambda: gone.rollback(1),
            gone.fork,
        ]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()
    assert stays.length == 4


def _opened(batch: Any) -> tuple[Any, Any]:
    first, second = batch.open(), batch.open()
    first.prefill([3, 1, 2])
    second.prefill([4, 1, 2, 5])
    return first, second
