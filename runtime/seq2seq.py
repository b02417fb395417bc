"""Sessions of an encoder-decoder: the prompt goes to the encoder, the reply to the decoder.

Above the engine protocol nothing changes: prompt and reply are one sequence of tokens. What comes
by `prefill` is encoded, together with all that stands before it; `step` adds to the reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .engine import Array, Choose, EngineInfo, Progress, check_room, check_tokens
from .errors import Cancelled, InputError, PippinError

ENDLESS = 1 << 20  # tokens; stands for the context of models without an end


class Seq2SeqSession(ABC):
    """Fulfils `runtime.engine.Session`; one sequence."""

    def __init__(self, info: EngineInfo, start_token: int, banned: Sequence[int]):
        self._info, self._start, self._banned = info, start_token, banned
        self._prompt: list[int] = []
        self._reply: list[int] = []  # tokens in the decoder's cache, behind the start token

    @abstractmethod
    def _encode(self, prompt: list[int]) -> None:
        """Encode a prompt and begin an empty reply."""

    @abstractmethod
    def _decode(self, tokens: Sequence[int], last: int) -> Array:
        """Append to the reply; logits [rows, V] of the `last` rows, 0 means all."""

    @abstractmethod
    def _truncate(self, length: int) -> None:
        """Keep the first `length` tokens in the decoder's cache."""

    @abstractmethod
    def fork(self) -> "Seq2SeqSession":
        """See `Session.fork`."""

    @property
    def length(self) -> int:
        return len(self._prompt) + len(self._reply)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Array:
        self._check(tokens)
        if should_stop is not None and should_stop():
            raise Cancelled("prefill was stopped")
        self._prompt = [*self._prompt, *self._reply, *tokens]
        self._reply = []
        self._encode(self._prompt)
        logits = self._forward([self._start], 1)
        if progress is not None:
            progress(len(tokens), len(tokens))
        return logits[-1]

    def step(self, token: int) -> Array:
        return self.verify([token], last=1)[-1]

    def verify(self, tokens: Sequence[int], last: int = 0) -> Array:
        self._check(tokens)
        if not self._prompt:
            raise PippinError("an encoder-decoder has no reply before it has a prompt")
        self._reply.extend(tokens)
        return self._forward(tokens, last)

    def verifiable(self, length: int, count: int) -> int:
        return max(min(count, self._info.context - 1 - length), 1)

    def decode(self, logits: Array, choose: Choose) -> Iterator[int]:
        index = 0
        while True:
            token = int(choose(logits, index))
            yield token
            logits = self.step(token)
            index += 1

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back from {self.length} tokens to {length}")
        if length == self.length:
            return
        kept = max(length - len(self._prompt), 0)
        if self._prompt:
            self._truncate(1 + kept)
        del self._reply[kept:], self._prompt[length:]

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        """Raises InputError: what an encoder made would have to be kept too."""
        raise InputError("sessions of an encoder-decoder are not saved; keep the text instead")

    def _forward(self, tokens: Sequence[int], last: int) -> Array:
        logits = self._decode(tokens, last)
        for token in self._banned:
            logits[:, token] = -float("inf")
        return logits

    def _check(self, tokens: Sequence[int]) -> None:
        check_tokens(tokens, self._info.vocab_size)
        check_room(self.length, len(tokens), self._info.context - 1)  # one is the start token


def banned_tokens(*configs: dict[str, Any]) -> tuple[int, ...]:
    """The tokens that no reply may have, by the first config that names any.

    Raises InputError for sequences of several, which are not implemented.
    """
    words = next((c["bad_words_ids"] for c in configs if c.get("bad_words_ids")), [])
    for word in words:
        if not isinstance(word, list) or len(word) != 1:
            raise InputError(
                f"the model has {word!r:.60} among its bad_words_ids; Pippin implements single "
                "tokens only"
            )
    return tuple(word[0] for word in words)


def refuse_restore() -> InputError:
    """The refusal of `Engine.restore`."""
    return InputError("sessions of an encoder-decoder are not saved, so none can be restored")
