"""A session that outlives one generation, so that the next starts from what it already holds."""

from collections.abc import Sequence
from pathlib import Path

from .engine import Engine, Session
from .errors import InputError, PippinError


class PromptCache:
    """One session and the tokens in its KV cache.

    Chats render the whole conversation anew each turn and `reuse` what is still the same at its
    beginning, whatever the template has rewritten further on. One generation at a time.
    """

    def __init__(
        self, engine: Engine, session: Session | None = None, tokens: Sequence[int] = ()
    ) -> None:
        self._engine, self._session = engine, session
        self._tokens = list(tokens)
        self._in_use = False
        self._draft: PromptCache | None = None

    def for_draft(self, engine: Engine) -> "PromptCache":
        """The cache of a draft model beside this one; it is not saved."""
        if self._draft is None or self._draft._engine is not engine:
            self._draft = PromptCache(engine)
        return self._draft

    @property
    def tokens(self) -> list[int]:
        """The tokens in the KV cache."""
        return list(self._tokens)

    def reuse(self, tokens: Sequence[int]) -> tuple[Session, int]:
        """The session, rolled back to the longest prefix shared with `tokens`, and its length.

        At least one token is left to be prefilled, since its logits are needed. Raises PippinError
        while another generation runs on this cache; `record` ends one.
        """
        if self._in_use:
            raise PippinError("the prompt cache is in use; finish or close the other generation")
        if self._session is None:
            self._session = self._engine.open()
        shared = min(common_prefix(self._tokens, list(tokens)), len(tokens) - 1)
        self._session.rollback(shared)
        self._tokens = list(tokens[:shared])
        self._in_use = True
        return self._session, shared

    def record(self, tokens: Sequence[int]) -> None:
        """End a generation: its session holds the first of `tokens`, prompt and reply."""
        self._tokens = list(tokens[: self._session.length])
        self._in_use = False

    def save(self, path: Path | str) -> None:
        """Write the session to one file, atomically; InputError when it holds nothing yet."""
        if not self._tokens:
            raise InputError("the prompt cache is empty; generate something before saving it")
        self._session.save(Path(path), self._tokens)

    @classmethod
    def load(cls, engine: Engine, path: Path | str) -> "PromptCache":
        """A cache that `save` wrote; InputError when damaged or of another model."""
        return cls(engine, *engine.restore(Path(path)))


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:  # equal up to `low`, and not up to `high`
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
