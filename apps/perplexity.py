"""Perplexity: how well a model foretells a text, computed alike on every backend.

Perplexity is exp of the mean negative log-likelihood of a token given those before it; bits per
byte is the same in bits, per byte of the text, and so can be compared across tokenizers. The text
is read in windows of `context` tokens, each on an empty KV cache. With a stride, windows overlap,
and what the window before has scored is not scored again, as in
https://huggingface.co/docs/transformers/perplexity.
"""

import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..runtime.engine import Engine
from ..runtime.errors import InputError, PippinError

if TYPE_CHECKING:
    from ..runtime.generator import Generator
    from ..runtime.tokenizer import Tokenizer

CONTEXT = 512  # tokens of a window
BUILT_IN_TOKENS = 4096  # read of the built-in text, unless told otherwise
_CHUNK = 128  # tokens in one call
_ROWS = 64  # rows of logits held in float64 at a time


@dataclass(frozen=True)
class Text:
    """What is read, and what it is known by."""

    content: str
    source: str

    @property
    def sha256(self) -> str:
        """Of the content in UTF-8, in hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True)
class Score:
    """What was measured."""

    nats: float  # negative log-likelihood, the sum over the scored tokens
    scored: int  # tokens that were foretold
    computed: int  # tokens that went through the model
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.scored)

    @property
    def tokens_per_second(self) -> float:
        return self.computed / self.seconds


@dataclass(frozen=True)
class Report:
    """A score, and what it is the score of."""

    score: Score
    text: Text
    tokens: int  # of the text that was read
    bytes: int  # of the text that was read
    context: int  # tokens of a window
    stride: int  # tokens from one window's beginning to the next's

    @property
    def bits_per_byte(self) -> float:
        """As if the few tokens that nothing comes before were as hard to foretell as the others."""
        bits_per_token = self.score.nats / self.score.scored / math.log(2)
        return bits_per_token * self.tokens / self.bytes


def built_in_text() -> Text:
    """The language reference that Python carries for `help()`: English prose, the same everywhere.

    It differs a little from one Python release to the next; `source` names the release.
    """
    from pydoc_data.topics import topics

    content = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return Text(content, f"pydoc_data.topics of Python {platform.python_version()}")


def read_text(path: Path) -> Text:
    """A UTF-8 file. Raises InputError when it cannot be read."""
    try:
        return Text(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: {error}") from error


def evaluate(
    generator: "Generator",
    text: Text,
    *,
    context: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """The perplexity of `text` under a loaded model.

    `context` is the tokens of a window (512, or what the model takes if that is less), `stride`
    the distance between two windows' beginnings (the whole window when None), `max_tokens` how
    much of the text is read. `progress(done, total)` counts tokens. Raises InputError as `score`.
    """
    tokenizer = generator.tokenizer
    prefix = _prefix(tokenizer)
    ids = tokenizer.encode(text.content, add_special_tokens=False)
    read = ids[:max_tokens]
    content = text.content if len(read) == len(ids) else tokenizer.decode(read)
    if context is None:
        context = min(CONTEXT, generator.engine.info.context)
    if stride is None:
        stride = context - len(prefix)
    measured = score(
        generator.engine, read, context=context, stride=stride, prefix=prefix, progress=progress
    )
    return Report(measured, text, len(read), len(content.encode()), context, stride)


def score(
    engine: Engine,
    ids: Sequence[int],
    *,
    context: int,
    stride: int | None = None,
    prefix: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """The likelihood of `ids` in windows of `context` tokens, which begin with `prefix` (BOS).

    Without a prefix the first token of the text, and of each window that overlaps none before, is
    not scored: nothing comes before it. Raises InputError for fewer than two tokens and for a
    context or stride out of range, PippinError when the model gives no finite likelihood.
    """
    width = context - len(prefix)
    stride = width if stride is None else stride
    if not 2 <= width <= engine.info.context - len(prefix):
        raise InputError(
            f"a context of {context} tokens was asked for; {engine.info.model} takes "
            f"{2 + len(prefix)} to {engine.info.context}"
        )
    if not 1 <= stride <= width:
        raise InputError(f"a stride of {stride} tokens was asked for; this context takes 1–{width}")
    if len(ids) < 2:
        raise InputError(f"perplexity needs at least 2 tokens of text; found {len(ids)}")
    nats, scored, computed, started = 0.0, 0, 0, time.perf_counter()
    for window in _windows(len(ids), width, stride):
        # Something must come before a token that is scored.
        first = window.first if prefix or window.first > window.begin else window.begin + 1
        tokens = [*prefix, *ids[window.begin : window.end]]
        count = window.end - first
        nats += _surprise(engine, tokens, count)
        scored, computed = scored + count, computed + len(tokens) - 1
        if progress is not None:
            progress(window.end, len(ids))
    if not math.isfinite(nats):
        raise PippinError(f"{engine.info.model} gives logits that are not finite on this text")
    return Score(nats, scored, computed, time.perf_counter() - started)


@dataclass(frozen=True)
class _Window:
    """Tokens begin…end−1 of the text, of which those from `first` on are scored."""

    begin: int
    first: int
    end: int


def _windows(total: int, width: int, stride: int) -> Iterator[_Window]:
    """Windows that score each token once; a last one that had a single token is left out."""
    end = 0
    for begin in range(0, total, stride):
        first, end = end, min(begin + width, total)
        if end - begin > 1:
            yield _Window(begin, first, end)
        if end == total:
            return


def _surprise(engine: Engine, tokens: Sequence[int], count: int) -> float:
    """Negative log-likelihood of the last `count` tokens, nats; float64 log-softmax."""
    session = engine.open(len(tokens))
    inputs, nats = tokens[:-1], 0.0
    skipped = len(inputs) - count  # rows whose following token is not scored
    for start in range(0, len(inputs), _CHUNK):
        logits = session.verify(inputs[start : start + _CHUNK])
        for at in range(max(skipped - start, 0), len(logits), _ROWS):
            part = log_softmax(np.array(logits[at : at + _ROWS]))
            following = tokens[start + at + 1 : start + at + 1 + len(part)]
            nats -= float(part[np.arange(len(part)), following].sum())
    return nats


def log_softmax(x: np.ndarray) -> np.ndarray:
    """log(softmax(x)) over the last axis, in float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _prefix(tokenizer: "Tokenizer") -> list[int]:
    """What the tokenizer puts before a text: BOS, or nothing."""
    marked = tokenizer.encode("a")
    return marked[: marked.index(tokenizer.encode("a", add_special_tokens=False)[0])]
