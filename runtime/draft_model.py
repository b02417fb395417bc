"""Drafts from a smaller model with the same tokens (speculative decoding, arXiv:2211.17192).

It proposes what it finds likeliest, one step a token, as long as it is sure enough: how often the
large model agrees is learned for each degree of sureness, from this reply alone.
"""

from collections.abc import Sequence

import numpy as np

from .engine import Engine, EngineInfo, Session
from .prompt_cache import PromptCache
from .speculation import FIRST, LONGEST, Budget, Cost

_DEGREES = 8  # of sureness, the likeliest token's probability
_MEMORY = 16  # tokens over which a rate is averaged
_SLOWER = 1.5  # by the byte, small models are slower: measured 1.7 for int8 activations beside fp32
_CATCH_UP = 16  # tokens of one call, for those that were decoded without a draft


class DraftModel:
    """The smaller model's session for one reply to `prompt` by the model of `info`; a `Drafter`.

    `cache` keeps the session for the next reply.
    """

    def __init__(
        self, engine: Engine, cache: PromptCache, prompt: Sequence[int], info: EngineInfo
    ) -> None:
        self._engine, self._cache, self._info = engine, cache, info
        self._prompt = list(prompt)
        self._tokens = list(prompt)
        self._largest = max(prompt)  # of the ids in the text
        self._session: Session | None = None
        self._valid = 0  # tokens in the session that are those of the text
        self._draft: list[int] = []
        self._degrees: list[int] = []  # how sure it was of each
        self._came_true, self._cost = 0, 0.0
        self._rates = [(degree + 0.5) / _DEGREES for degree in range(_DEGREES)]
        self._budget = Budget()

    def append(self, token: int) -> None:
        """Take the reply's next token, and learn from it."""
        self._tokens.append(token)
        self._largest = max(self._largest, token)
        if not self._draft:
            return
        came_true = token == self._draft[self._came_true]
        degree = self._degrees[self._came_true]
        self._rates[degree] += (came_true - self._rates[degree]) / _MEMORY
        self._came_true += came_true
        self._valid += came_true
        if not came_true or self._came_true == len(self._draft):
            self._budget.settle(self._came_true - self._cost)
            self._draft = []

    def draft(self, longest: int, cost: Cost) -> list[int]:
        """The likeliest next tokens, as long as they are likely to be the other model's too."""
        length, vocab_size = len(self._tokens), self._engine.info.vocab_size
        room = self._engine.info.context - length  # the last token drafted is not computed
        longest = min(longest, LONGEST, room)
        step = _SLOWER * self._engine.info.bytes_read(length) / self._info.bytes_read(length)
        first = cost(FIRST) + FIRST * step
        allowed = self._budget.allowed(length - len(self._prompt), first)
        if longest < 1 or cost(1) + step > allowed or self._largest >= vocab_size:
            return []
        logits = self._catch_up()
        self._cost, self._came_true, self._draft, self._degrees = 0.0, 0, [], []
        reached = 1.0
        while True:
            token, degree = _likeliest(logits)
            count = len(self._draft) + 1
            reached *= self._rates[degree]
            pays = reached > cost(count) - (cost(count - 1) if count > 1 else 0.0)
            if token >= self._info.vocab_size or not pays:
                break
            self._draft.append(token)
            self._degrees.append(degree)
            spent = cost(count) + count * step
            if count == longest or spent + step > allowed:
                break
            logits = self._session.step(token)
        self._cost = step * max(len(self._draft), 1)
        if self._draft:
            self._cost += cost(len(self._draft))
        else:
            self._budget.settle(-self._cost)
        return list(self._draft)

    def close(self) -> None:
        if self._session is not None:
            self._session.rollback(min(self._valid, self._session.length))
            self._cache.record(self._tokens)
            self._session = None

    def _catch_up(self) -> np.ndarray:
        """The logits after the text so far."""
        if self._session is None:
            self._session, self._valid = self._cache.reuse(self._prompt)
            self._session.prefill(self._prompt[self._valid :])
            self._valid = len(self._prompt)
        self._session.rollback(min(self._valid, self._session.length))
        while (at := self._session.length) < len(self._tokens):
            logits = self._session.verify(self._tokens[at : at + _CATCH_UP])[-1]
            self._valid = self._session.length
        return logits


def _likeliest(logits: np.ndarray) -> tuple[int, int]:
    """The token, and the degree to which the model is sure of it; 0 where logits are NaN."""
    logits = np.asarray(logits)
    token = int(logits.argmax())
    with np.errstate(all="ignore"):
        probability = 1 / np.exp(logits - logits[token]).sum()
    if not np.isfinite(probability):
        return token, 0
    return token, min(int(probability * _DEGREES), _DEGREES - 1)
