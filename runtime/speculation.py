"""Prompt lookup: where a text repeats itself, guess the next tokens and check several in one call.

No second model is needed: what followed the same tokens before, in the prompt or in the reply, is
what probably follows now (prompt lookup decoding; arXiv:2304.04487). Each token is still what the
sampler chooses from the model's logits, with the draw that belongs to its place in the reply. So
guesses change how fast a text comes, and the text itself only where a choice is so close that the
rounding of one call with several tokens, instead of a call each, decides it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import zip_longest

from .engine import Array, Choose, Session

_SIZES = (3, 2)  # tokens that must have stood in the text before; longer ones are tried first
_LONGEST = 8  # tokens; matches that are longer count as this long
_MEMORY = 8  # matches over which a rate is averaged
# What a call with k drafted tokens costs more than a step, in steps, on onnxruntime's CPU: other
# kernels run than for one token, which are slow to begin with, then cheap by the token.
_CALL_COST, _TOKEN_COST = 1.5, 0.1
_MOST_LOST = 0.03  # of a reply's steps


class Repeats:
    """A text so far, and the earlier place in it that its end repeats.

    Each token is compared with the one foretold, drafted or not: what a match of some length is
    worth in this text is learned without paying for drafts. While the drafts so far have lost more
    steps than they saved, the next are made on paper only, until they would have paid.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the place behind its last one
        # How often a match of so many tokens goes on; to begin with, assumed to be half of those
        # of two tokens and four fifths of the longest.
        self._rates = [length / (length + 2) for length in range(_LONGEST + 1)]
        self._place = self._matched = 0  # the token foretold, and how many before it are alike
        self._draft: list[int] = []  # the one under way, paid for or on paper
        self._came_true = 0  # of its tokens
        self._saved = 0.0  # steps, by all drafts; never above 0, so that one can always fail
        for token in prompt:
            self._follow(token)
        self._start = len(self._tokens)

    def append(self, token: int) -> None:
        """Take the reply's next token, and learn from it."""
        if self._matched:
            length = min(self._matched, _LONGEST)
            came_true = token == self._tokens[self._place]
            self._rates[length] += (came_true - self._rates[length]) / _MEMORY
        if self._draft:
            came_true = token == self._draft[self._came_true]
            self._came_true += came_true
            if not came_true or self._came_true == len(self._draft):
                saved = self._came_true - _cost(len(self._draft))
                self._saved, self._draft = min(self._saved + saved, 0.0), []
        self._follow(token)

    def draft(self, longest: int) -> list[int]:
        """The next tokens foretold, as many as pay best, up to `longest`; often none."""
        count = 0 if self._draft else self._paying(longest)
        if not count:
            return []
        # A text that repeats its very end runs on into its own draft.
        known = self._tokens[self._place : self._place + count]
        self._draft = [known[i % len(known)] for i in range(count)]
        self._came_true = 0
        lost = _cost(count) - self._saved
        paid = self._saved == 0 or lost <= _MOST_LOST * (len(self._tokens) - self._start)
        return list(self._draft) if paid else []

    def _paying(self, longest: int) -> int:
        """How many tokens to draft, so that the steps saved are the most to be expected."""
        if not self._matched:
            return 0
        reached, expected, best, count = 1.0, 0.0, 0.0, 0
        for length in range(1, longest + 1):
            reached *= self._rates[min(self._matched + length - 1, _LONGEST)]
            expected += reached
            if expected - _cost(length) > best:
                best, count = expected - _cost(length), length
        return count

    def _follow(self, token: int) -> None:
        tokens = self._tokens
        if self._matched and token == tokens[self._place]:
            self._place, self._matched = self._place + 1, self._matched + 1
        else:
            self._matched = 0
        tokens.append(token)
        for size in _SIZES:
            if len(tokens) < size:
                continue
            ending = tuple(tokens[-size:])
            if not self._matched and ending in self._after:
                self._place, self._matched = self._after[ending], size
            self._after[ending] = len(tokens)


def _cost(count: int) -> float:
    return _CALL_COST + _TOKEN_COST * count


class PromptLookup:
    """Decodes one reply of at most `max_tokens` after `prompt`, in drafts of at most `longest`
    tokens; `drafted_tokens` and `accepted_tokens` count them.
    """

    def __init__(self, prompt: Sequence[int], longest: int, max_tokens: int) -> None:
        self._text = Repeats(prompt)
        self._longest, self._max_tokens = longest, max_tokens
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

    def _take(self, token: int) -> int:
        self._text.append(token)
        self._count += 1
        return token

    def _draft(self, session: Session, start: int) -> list[int]:
        """What may follow the last token, which is not in the cache yet."""
        longest = min(self._longest, self._max_tokens - self._count - 1)
        length = start + self._count - 1
        draft = self._text.draft(session.verifiable(length, 1 + longest) - 1)
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
