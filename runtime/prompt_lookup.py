"""Drafts from the text itself, where it repeats.

What followed the same tokens before, in the prompt or in the reply, is what probably follows now
(prompt lookup decoding; arXiv:2304.04487).
"""

from collections.abc import Sequence

from .speculation import FIRST, Budget, Cost

_SIZES = (3, 2)  # tokens that must have stood in the text before; longer ones are tried first
_LONGEST = 8  # tokens; matches that are longer count as this long
_MEMORY = 8  # matches over which a rate is averaged


class PromptLookup:
    """A text so far, and the earlier place in it that its end repeats; a `Drafter`.

    Each token is compared with the one foretold, drafted or not: what a match of some length is
    worth in this text is learned without paying for drafts. What would cost more than the drafts so
    far have saved is drafted on paper only, until it would have paid.
    """

    def __init__(self, prompt: Sequence[int], longest: int) -> None:
        self._most = longest
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the place behind its last one
        # How often a match of so many tokens goes on; to begin with, assumed to be a quarter of
        # those of two tokens and seven tenths of the longest.
        self._rates = [(length - 1) / (length + 2) for length in range(_LONGEST + 1)]
        self._place = self._matched = 0  # the token foretold, and how many before it are alike
        self._draft: list[int] = []  # the one under way, paid for or on paper
        self._came_true = 0  # of its tokens
        self._budget, self._cost, self._paid = Budget(), 0.0, False
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
                self._budget.settle(self._came_true - self._cost, self._paid)
                self._draft = []
        self._follow(token)

    def draft(self, longest: int, cost: Cost) -> list[int]:
        """The next tokens foretold, as many as pay best, up to `longest`; often none."""
        if self._draft or not self._matched:
            return []
        longest = min(longest, self._most)
        allowed = self._budget.allowed(len(self._tokens) - self._start, cost(FIRST))
        count = self._paying(longest, cost, allowed)
        self._paid = count > 0
        count = count or self._paying(longest, cost)
        if not count:
            return []
        # A text that repeats its very end runs on into its own draft.
        known = self._tokens[self._place : self._place + count]
        self._draft = [known[i % len(known)] for i in range(count)]
        self._came_true, self._cost = 0, cost(count)
        return list(self._draft) if self._paid else []

    def close(self) -> None:
        pass

    def _paying(self, longest: int, cost: Cost, allowed: float = float("inf")) -> int:
        """How many tokens to draft, so that the steps saved are the most to be expected, and no
        more than `allowed` can be lost.
        """
        reached, expected, best, count = 1.0, 0.0, 0.0, 0
        for length in range(1, longest + 1):
            spent = cost(length)
            if spent > allowed:
                break
            reached *= self._rates[min(self._matched + length - 1, _LONGEST)]
            expected += reached
            if expected - spent > best:
                best, count = expected - spent, length
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
