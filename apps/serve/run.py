"""One reply under way: from a prompt's tokens to the pieces of text that a client gets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.constraints import Constraint
from ...runtime.errors import PippinError
from ...runtime.reply import Reply
from ...runtime.sampling import Sampler, SamplingParams

if TYPE_CHECKING:
    from ...runtime.tokenizer import Tokenizer
    from .ticket import Ticket

Array = Any


@dataclass(frozen=True)
class Ask:
    """What a request wants of the model: `count` replies to one prompt."""

    tokens: list[int]
    params: SamplingParams  # with a seed, max_tokens within the context, breakers as ids
    count: int = 1
    top_logprobs: int | None = None  # None: no logprobs; k: the k likeliest beside the chosen one
    constraint: Constraint | None = None  # which texts the replies may be
    shown: tuple[str, ...] = ()  # special tokens that their text shows


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was by the model's own logits, before penalties and temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, logprob), the likeliest first


@dataclass(frozen=True)
class Piece:
    """A piece of reply `index`: whole characters, and the tokens taken since the piece before.

    Only the last one has `finish_reason`: "stop", "stop_string" or "length".
    """

    index: int
    text: str
    tokens: tuple[int, ...]  # an end-of-turn token included
    cached: int  # tokens of the prompt that were computed before, for an earlier request
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop: str | None = None  # the stop string that ended the reply


@dataclass
class _Pending:
    """What has been chosen since the piece before."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Run:
    """Reply number `sequence` of an ask, number `index` of its ticket; all but its making is for
    the engine's thread.
    """

    def __init__(
        self, ask: Ask, sequence: int, index: int, ticket: "Ticket", tokenizer: "Tokenizer"
    ) -> None:
        self.ask, self.sequence, self.index, self.ticket = ask, sequence, index, ticket
        self.prompt = ask.tokens
        self.reply: list[int] = []
        self.cached = 0  # tokens of the prompt that were there already
        self.queued = time.perf_counter()  # moments, for the statistics
        self.admitted = self.first_token = 0.0
        self._tokenizer = tokenizer
        self._text = Reply(ask.params, tokenizer, ask.shown)
        self._pending = _Pending()
        self._shown = 0  # characters

    def begin(self, vocab_size: int, xp: ModuleType) -> None:
        """Make what takes memory, now that the reply has a slot.

        Raises InputError for a logit bias on a token that is not there.
        """
        self.admitted = time.perf_counter()
        ask = self.ask
        state = ask.constraint.start() if ask.constraint else None
        self._sampler = Sampler(ask.params, vocab_size, xp, self.prompt, self.sequence, state)

    @property
    def finished(self) -> bool:
        """Whether the reply has ended by itself."""
        return self._text.finish_reason is not None

    def choose(self, logits: Array) -> Array:
        """The next token from `logits` [V], 0-d, perhaps not evaluated yet."""
        return self._sampler(logits, len(self.reply))

    def take(self, token: int, logits: Array) -> Piece | None:
        """Count a chosen token, and what can be shown now. `logits` [V] are those it came from.

        Raises PippinError when there was nothing to choose from.
        """
        if token < 0:
            raise PippinError(
                f"the model's logits after {len(self.prompt) + len(self.reply)} tokens are all NaN "
                "or masked"
            )
        self.reply.append(token)
        self._pending.tokens.append(token)
        if self.ask.top_logprobs is not None:
            self._pending.logprobs.append(_logprob(logits, token, self.ask.top_logprobs))
        text = self._text.add(token)
        self._shown += len(text)
        return self._piece(text) if text or self.finished else None

    def _piece(self, text: str) -> Piece:
        done, self._pending = self._pending, _Pending()
        reason = self._text.finish_reason
        return Piece(
            self.index,
            text,
            tuple(done.tokens),
            self.cached,
            tuple(done.logprobs),
            reason,
            self._stop() if reason == "stop_string" else None,
        )

    def _stop(self) -> str | None:
        """The stop string that stands where the text was cut."""
        detokenizer = self._tokenizer.detokenizer(shown=self.ask.shown)
        text = "".join([detokenizer.add(token) for token in self.reply]) + detokenizer.finish()
        rest = text[self._shown :]
        return next((stop for stop in self.ask.params.stop if rest.startswith(stop)), None)


def _logprob(logits: Array, token: int, count: int) -> TokenLogprob:
    row = np.asarray(logits, np.float32).astype(np.float64)
    top = row.max()
    normalizer = top + np.log(np.exp(row - top).sum())
    if count == 0:
        likeliest: Sequence[int] = ()
    else:
        chosen = np.argpartition(-row, count - 1)[:count] if count < row.size else range(row.size)
        likeliest = sorted((int(i) for i in chosen), key=lambda i: (-row[i], i))
    pairs = tuple((i, float(row[i] - normalizer)) for i in likeliest)
    return TokenLogprob(token, float(row[token] - normalizer), pairs)
