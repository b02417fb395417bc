"""The text of one reply, from its tokens, and why it ended."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from .sampling import SamplingParams
from .stop import StopStrings

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Reply:
    """Takes tokens, gives text that is safe to show; `finish_reason` is set when it has ended."""

    def __init__(
        self, params: SamplingParams, tokenizer: "Tokenizer", shown: Collection[str] = ()
    ) -> None:
        self._eos = frozenset() if params.ignore_eos else tokenizer.eos_token_ids
        self._left = params.max_tokens
        self._detokenizer = tokenizer.detokenizer(shown=shown)
        self._stops = StopStrings(params.stop)
        self.finish_reason: str | None = None

    def add(self, token: int) -> str:
        """The text that has become certain with `token`; an end-of-turn token has none."""
        self._left -= 1
        if token in self._eos:
            return self._end("stop")
        text, stopped = self._stops.feed(self._detokenizer.add(token))
        if stopped:
            self.finish_reason = "stop_string"
            return text
        return text + self._end("length") if self._left == 0 else text

    def cancel(self) -> str:
        """End the reply here; what was held back is shown."""
        return self._end("cancelled")

    def _end(self, reason: str) -> str:
        text, _ = self._stops.feed(self._detokenizer.finish())
        text += self._stops.flush()  # which may still find a stop string in what was held back
        self.finish_reason = "stop_string" if self._stops.stopped else reason
        return text
