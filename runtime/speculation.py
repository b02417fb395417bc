"""Guess the next tokens and check several in one call.

Whoever guesses is a `Drafter`: the text itself where it repeats (`prompt_lookup.py`), or a smaller
model (`draft_model.py`; speculative decoding, arXiv:2211.17192). Each token is still what the
sampler chooses from the model's logits, with the draw that belongs to its place in the reply. So
guesses change how fast a text comes, and the text itself only where the engine's rows are not alike
(`EngineInfo.rows_alike`) and a choice is so close that the rounding of one call with several
tokens, instead of a call each, decides it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import zip_longest
from typing import Protocol

from .engine import Array, Choose, EngineInfo, Session

LONGEST = 15  # tokens of a draft; with the token before them as many as one quick call takes
_MOST_LOST = 0.015  # of a reply's steps; as many again where drafts on paper made good for losses
FIRST = 3  # tokens of a draft that may be lost before the reply is long enough for that
_MOST_SAVED = 3.0  # steps that count, so that a text that repeats no more is soon noticed

Cost = Callable[[int], float]  # steps that checking so many drafted tokens takes beside one step


class Drafter(Protocol):
    """Guesses how one reply goes on."""

    def append(self, token: int) -> None:
        """Take the reply's next token."""

    def draft(self, longest: int, cost: Cost) -> list[int]:
        """The next tokens, up to `longest`, if that is likely to pay; they are checked at once."""

    def close(self) -> None:
        """The reply has ended."""


class Budget:
    """What the drafts of one reply have saved, in steps, and what they may cost."""

    def __init__(self) -> None:
        self._saved = 0.0
        self._forgivable = 0.0  # steps lost that drafts on paper may still make good for
        self._count = 0

    def allowed(self, count: int, first: float) -> float:
        """The most steps that the next draft may cost, after `count` tokens of the reply.

        `first` is what a draft of FIRST tokens costs.
        """
        self._forgivable += _MOST_LOST * (count - self._count)
        self._count = count
        return self._saved + max(_MOST_LOST * count, first)

    def settle(self, saved: float, paid: bool = True) -> None:
        """A draft has saved so many steps, or would have if it had been `paid` for.

        One on paper makes good for losses only, and not for all: what it saved is not there to be
        spent.
        """
        if paid:
            self._saved = min(self._saved + saved, _MOST_SAVED)
            return
        forgiven = min(saved, -self._saved, self._forgivable)
        if forgiven > 0:
            self._saved += forgiven
            self._forgivable -= forgiven
        elif saved < 0:
            self._saved += saved


class Speculation:
    """Decodes one reply of at most `max_tokens` on an engine of this `info`.

    The first of `drafters` that has a draft is taken; `drafted_tokens` and `accepted_tokens` count
    them.
    """

    def __init__(self, info: EngineInfo, drafters: Sequence[Drafter], max_tokens: int) -> None:
        self._info, self._drafters, self._max_tokens = info, drafters, max_tokens
        self._count = 0  # tokens of the reply so far
        self.drafted_tokens = self.accepted_tokens = 0

    def decode(self, session: Session, logits: Array, choose: Choose) -> Iterator[int]:
        """As `Session.decode`, whose contract it keeps; to be called once.

        While there is no draft, it is the session's own decoding that runs.
        """
        start, choices = session.length, _Choices(choose)
        draft: list[int] = []
        try:
            while True:
                steps = session.decode(logits, choices.from_index(self._count))
                with closing(steps):
                    while not draft:
                        token = self._take(next(steps))
                        yield token
                        draft = self._draft(session, start)
                while draft:
                    rows = session.verify([token, *draft])
                    for index, guess in zip_longest(range(len(rows)), draft):
                        token = self._take(int(choices(rows[index], self._count)))
                        self.accepted_tokens += token == guess
                        yield token
                        if token != guess:
                            break
                    session.rollback(start + self._count - 1)
                    draft = self._draft(session, start)
                logits = session.step(token)
        finally:
            session.rollback(min(start + max(self._count - 1, 0), session.length))
            for drafter in self._drafters:
                drafter.close()

    def _take(self, token: int) -> int:
        for drafter in self._drafters:
            drafter.append(token)
        self._count += 1
        return token

    def _draft(self, session: Session, start: int) -> list[int]:
        """What may follow the last token, which is not in the cache yet."""
        length = start + self._count - 1
        longest = min(LONGEST, self._max_tokens - self._count - 1)
        longest = session.verifiable(length, 1 + longest) - 1
        info = self._info
        cached = length * info.kv_bytes_per_token / info.weight_bytes
        cost = partial(info.verify_cost, cached=cached)
        drafts = (drafter.draft(longest, cost) for drafter in self._drafters if longest > 0)
        draft = next(filter(None, drafts), [])
        self.drafted_tokens += len(draft)
        return draft


class _Choices:
    """Each token chosen once: an engine that runs ahead has chosen one already when a draft is
    taken up in its place, and a sampler counts what it has chosen.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose, self._made = choose, 0
        self._last: Array | None = None

    def __call__(self, logits: Array, index: int) -> Array:
        if index == self._made:
            self._last = self._choose(logits, index)
            self._made += 1
        return self._last

    def from_index(self, first: int) -> Choose:
        """The choices of a decoding whose index 0 is `first` here."""
        return lambda logits, index: self(logits, first + index)
