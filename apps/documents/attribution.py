"""How much of the attention went to each passage while an answer was written.

For each sentence of the answer: the attention weights of the positions that predicted its tokens,
averaged over those positions, all heads, and the middle third of the layers. Early layers mostly
look at neighbours, late ones prepare the next token. The first token takes weight that nothing
else claims (arXiv:2309.17453), so its share is told apart. Attention says where a model looked,
not why it answered so (arXiv:1902.10186).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...runtime.generator import Generator

# What is not a passage's, as `SentenceAttention.rest` has it.
REST = ("first token", "question and task", "answer so far")
CAVEAT = "Attention shows where the model looked, not why it answered so."
_TRACE_BYTES = 256 << 20  # of operands that are held at a time


@dataclass(frozen=True)
class SentenceAttention:
    """Shares of one sentence's attention; with `first`, `prompt` and `answer` they add up to 1."""

    passages: tuple[float, ...]
    first: float  # the prompt's first token, and learned sinks
    prompt: float  # the rest of the prompt: question, task, the chat template's marks
    answer: float  # what had been answered so far

    @property
    def rest(self) -> tuple[float, float, float]:
        """The shares that no passage has, in the order of `REST`."""
        return self.first, self.prompt, self.answer


@dataclass(frozen=True)
class Attribution:
    """The attention of each sentence of an answer."""

    sentences: tuple[SentenceAttention, ...]
    tokens: tuple[int, ...]  # how long each passage is: a longer one gets more by chance
    layers: tuple[int, ...]  # that were averaged, from 0

    @property
    def mean(self) -> SentenceAttention:
        """Over the sentences."""
        rows = [(*one.passages, *one.rest) for one in self.sentences]
        *each, first, prompt, answer = np.mean(rows, axis=0).tolist()
        return SentenceAttention(tuple(each), first, prompt, answer)


def middle_third(count: int) -> range:
    """The layers of a model with `count` of them whose attention is averaged."""
    third = count // 3
    return range(third, count - third)


def attribute(
    generator: "Generator",
    prompt: Sequence[int],
    reply: Sequence[int],
    passages: Sequence[tuple[int, int]],
    sentences: Sequence[tuple[int, int]],
    progress: Callable[[int, int], None] | None = None,
) -> Attribution:
    """The attention of `sentences`, token ranges in `reply`, on `passages`, ranges in `prompt`.

    The model runs over both once more; operands of 256 MiB at most are held at a time, more layers
    take another run, and weights exist for one sentence and one layer. Raises InputError for a
    model whose attention cannot be shown.
    """
    from ..insight.attention import mass
    from ..insight.trace import trace

    last = max(end for _, end in sentences)
    tokens = [*prompt, *reply[: last - 1]]  # the last one is predicted, and predicts none
    one = trace(generator, tokens[:1]).layers  # cheap, and says what the model has
    layers = list(middle_third(len(one)))
    layer_bytes = max(t.q.nbytes + t.k.nbytes + t.v.nbytes for t in one.values()) * len(tokens)
    at_once = max(1, _TRACE_BYTES // layer_bytes)
    groups = _groups(len(tokens), len(prompt), passages)
    rows = [range(len(prompt) + start - 1, len(prompt) + end - 1) for start, end in sentences]
    sums = np.zeros((len(sentences), len(passages) + 3))
    for begin in range(0, len(layers), at_once):
        found = trace(generator, tokens, layers[begin : begin + at_once]).layers
        for done, layer in enumerate(found.values(), begin + 1):
            for place, queries in enumerate(rows):
                shares = mass(layer, groups, queries)
                first = (shares.first + shares.sinks).mean(dtype=np.float64)
                each = shares.groups.mean((0, 1), dtype=np.float64)
                sums[place] += [*each, first]
            if progress is not None:
                progress(done, len(layers))
    return Attribution(
        tuple(_named(row / len(layers)) for row in sums),
        tuple(end - start for start, end in passages),
        tuple(layers),
    )


def _groups(total: int, prompt: int, passages: Sequence[tuple[int, int]]) -> np.ndarray:
    """Of each token [S]: its passage, or the number after them (answer), or the next (prompt).

    The largest is sure to occur, as `mass` needs it: no passage reaches the prompt's end.
    """
    groups = np.full(total, len(passages) + 1)
    for number, (start, end) in enumerate(passages):
        groups[start:end] = number
    groups[prompt:] = len(passages)
    return groups


def _named(row: np.ndarray) -> SentenceAttention:
    *each, answer, prompt, first = map(float, row)
    return SentenceAttention(tuple(each), first, prompt, answer)
