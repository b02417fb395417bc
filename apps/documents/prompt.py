"""The prompt that puts a question and passages before a model, and where in it each passage is."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...runtime.errors import InputError
from ..reply import as_prompt
from .passages import Passage
from .sentences import split_sentences

if TYPE_CHECKING:
    from ...runtime.generator import Generator
    from ...runtime.tokenizer import Tokenizer

_BEGINNING = 16  # characters by which a passage is known
# Of ten wordings that were tried on SmolLM2, the one it did not echo or run in circles at.
_TASK = "Using only the passages above, answer in one or two sentences: "


@dataclass(frozen=True)
class Prompt:
    """What the model gets: the passages that fitted, and the tokens."""

    passages: tuple[Passage, ...]
    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # of each passage, its header left out; in tokens


def build_prompt(
    generator: "Generator", question: str, passages: Sequence[Passage], reply_tokens: int
) -> Prompt:
    """As many of `passages` as fit beside the reply, the first ones first.

    If not even the first fits, its first sentences. Raises InputError when these do not either.
    """
    room = generator.engine.info.context - reply_tokens
    chosen = list(passages)
    while True:
        tokens = _encode(generator, question, chosen)
        if len(tokens) <= room:
            break
        if len(chosen) > 1:
            chosen.pop()
        elif not chosen or (shorter := _shortened(chosen[0])) is None:
            raise InputError(
                f"the model's context of {generator.engine.info.context:,} tokens has no room for "
                f"a passage, the question and {reply_tokens:,} tokens of answer; "
                "shorten the question, ask for fewer tokens or give a model with a longer context"
            )
        else:
            chosen = [shorter]
    return Prompt(tuple(chosen), tuple(tokens), tuple(_spans(generator.tokenizer, tokens, chosen)))


def _encode(generator: "Generator", question: str, passages: Sequence[Passage]) -> list[int]:
    return generator.encode(
        as_prompt(generator, write_message(generator.tokenizer, question, passages))
    )


def write_message(tokenizer: "Tokenizer", question: str, passages: Sequence[Passage]) -> str:
    """The question behind numbered passages and the task, as a user's message."""
    if not passages:
        return question
    parts = [f"{_header(n)}{p.text.strip()}" for n, p in enumerate(passages, 1)]
    text = "\n\n".join([*parts, f"{_TASK}{question}"])
    # a model that only continues text needs to be led
    return text if tokenizer.chat_template else f"{text}\nAnswer:"


def _header(number: int) -> str:
    """Without the page: one more number that a small model may take for an answer."""
    return f"[{number}]\n"


def _shortened(passage: Passage) -> Passage | None:
    """The passage without its last sentence, None when there is one only."""
    spans = split_sentences(passage.text)
    if len(spans) < 2:
        return None
    end = spans[-2][1]
    return replace(passage, text=passage.text[:end], end=passage.start + end)


def _spans(
    tokenizer: "Tokenizer", tokens: Sequence[int], passages: Sequence[Passage]
) -> list[tuple[int, int]]:
    """Where the tokens of each passage are.

    The headers are looked for in the decoded prompt, since a tokenizer may change what it encodes.
    """
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    text, ends = "", []  # ends: characters after each token
    for token in tokens:
        text += detokenizer.add(token)
        ends.append(len(text))
    text += detokenizer.finish()
    if not passages:
        return []
    starts, at = [], 0
    for number, passage in enumerate(passages, 1):
        header = _header(number).rstrip("\n")
        begun = f"{_header(number)}{passage.text.strip()[:_BEGINNING]}"  # a text may hold "[2]" too
        at = text.find(begun if begun in text else header, at)
        if at < 0:
            return []
        starts.append((at, at + len(header)))
        at += len(header)
    last = text.find(_TASK, at)
    stops = [*(start for start, _ in starts[1:]), last if last >= 0 else len(text)]
    return [
        (bisect_right(ends, begin), bisect_left(ends, stop))
        for (_, begin), stop in zip(starts, stops, strict=True)
    ]
