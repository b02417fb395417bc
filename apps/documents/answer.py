"""A question answered from documents: what is found, the answer, its sources, as events.

    for event in ask(model, index, question):
        match event: …

The order is `Found`, then either `NotFound` or `Text` and `Sentence` in turn up to `Answered`, then
`Attributed` and `Contrast` where they were asked for. Whoever shows the answer needs no more than
`Text` and, after each sentence, its `Sentence`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...runtime.errors import InputError
from ..models import Model, StageProgress, Stages
from ..reasoning import Reasoning, find_marks
from ..reply import stream_reply
from .attribution import Attribution, attribute
from .marks import Sources
from .passages import Hit, Passage
from .prompt import Prompt, build_prompt
from .question import Filter, parse
from .reader import AnswerReader, Sentence
from .sentences import content_words

if TYPE_CHECKING:
    from ...runtime.embedder import Embedder
    from ...runtime.generator import Chunk, Stats
    from .index import Index

SIMILARITY = 0.36  # cosine of question and best passage; docs/ask.md has what it costs


@dataclass(frozen=True)
class Options:
    """How to answer."""

    top: int = 5  # passages that the model gets, at most
    max_tokens: int = 256  # of the answer
    attention: bool = False  # attribute the answer's sentences to the passages
    contrast: bool = False  # answer once more without the passages


@dataclass(frozen=True)
class Found:
    """What the search found, best first; as many of the first hits as fit are in the prompt."""

    hits: tuple[Hit, ...]
    filter: Filter | None  # the pages or sections that the question was held to
    evidence: "Evidence"


@dataclass(frozen=True)
class Evidence:
    """How near the best hits come to the question; the two need not be the same hit."""

    similarity: float | None  # cosine; None where no vector search was made
    coverage: float | None  # share of content words; None where the question has none

    @property
    def enough(self) -> bool:
        """Whether the answer may be in the hits: one is near, or has every word of the question.

        A question without content words, "What is on page 12?", asks for whatever is there.
        """
        near = self.similarity is not None and self.similarity >= SIMILARITY
        return near or self.coverage is None or self.coverage == 1.0


@dataclass(frozen=True)
class NotFound:
    """The documents do not have it; the model was not asked."""

    reason: str
    nearest: tuple[str, ...] = ()  # of each hit the sentence that is nearest to the question


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Answered:
    """The whole answer."""

    passages: tuple[Passage, ...]  # that the model got; `Support.passage` counts them from 0
    nearest: tuple[str, ...]  # of each passage the sentence that is nearest to the question
    text: str
    sentences: tuple[Sentence, ...]
    finish_reason: str  # as of `Chunk`, or "repeated": the model began to say the same again
    stats: "Stats | None"  # None for an answer that was cut off

    @property
    def unsupported(self) -> int:
        """Sentences without a source."""
        return sum(sentence.support is None for sentence in self.sentences)


@dataclass(frozen=True)
class Attributed:
    """The attention that each of the answer's sentences paid to each passage."""

    attribution: Attribution


@dataclass(frozen=True)
class NotAttributed:
    """Why there is no attribution."""

    reason: str


@dataclass(frozen=True)
class Contrast:
    """A piece of the answer that the model gives without the passages."""

    text: str


Event = Found | NotFound | Text | Sentence | Answered | Attributed | NotAttributed | Contrast


def ask(
    model: Model,
    index: "Index",
    question: str,
    options: Options | None = None,
    *,
    documents: Sequence[str] | None = None,
    embedder: "Embedder | None" = None,
    stages: Stages | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Event]:
    """Events of the answer to `question` from `documents` (sha256; None: all) in `index`.

    `embedder` finds sources that say the same in other words. Each token is the likeliest one.
    Raises InputError: an empty question, a context without room.
    """
    options = options or Options()
    if not question.strip():
        raise InputError("the question is empty; ask about what is in the documents")
    found = index.search(question, options.top, documents=documents)
    evidence = weigh(question, found.hits)
    yield Found(tuple(found.hits), found.filter, evidence)
    passages = [hit.passage for hit in found.hits]
    if reason := missing(found.hits, found.filter, evidence):
        sources = Sources(passages, _page_texts(index, passages), embedder)
        yield NotFound(reason, tuple(sources.nearest(question)))
        return
    prompt = build_prompt(model.generator, question, passages, options.max_tokens)
    sources = Sources(prompt.passages, _page_texts(index, prompt.passages), embedder)
    nearest = tuple(sources.nearest(question))
    run = _Run(model, prompt, sources, nearest, options)
    yield from run.answer(stages and stages("reading the passages", "tokens"), should_stop)
    if options.attention:
        yield _attribute(model, prompt, run, stages and stages("tracing attention", "layers"))
    if options.contrast:
        alone = build_prompt(model.generator, question, [], options.max_tokens)
        run = _Run(model, alone, Sources([], []), (), options)
        for event in run.answer(None, should_stop):
            if isinstance(event, Text):
                yield Contrast(event.text)


def weigh(question: str, hits: Sequence[Hit]) -> Evidence:
    """How near the hits come to what the question asks beside pages that it names."""
    reference = parse(question)
    words = set(content_words(reference.rest if reference else question))
    similarities = [hit.similarity for hit in hits if hit.similarity is not None]
    shares = [
        len(words & set(content_words(f"{hit.passage.section}\n{hit.passage.text}"))) / len(words)
        for hit in hits
        if words
    ]
    return Evidence(max(similarities, default=None), max(shares, default=None))


def missing(hits: Sequence[Hit], taken: Filter | None, evidence: Evidence) -> str:
    """Why the documents cannot answer; "" when they may."""
    if taken is not None and taken.empty:
        return taken.statement
    if hits and evidence.enough:
        return ""
    return f"nothing on {taken.statement} comes near it" if taken else "no passage comes near it"


def _page_texts(index: "Index", passages: Sequence[Passage]) -> list[str]:
    """The text of each passage's page, as it was read."""
    pages = {
        (sha256, page.number): page.text
        for sha256 in {passage.document for passage in passages}
        if (document := index.document(sha256)) is not None
        for page in document.pages
    }
    return [pages.get((passage.document, passage.page), "") for passage in passages]


class _Run:
    """One answer under way, and afterwards what it came to."""

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        sources: Sources,
        nearest: tuple[str, ...],
        options: Options,
    ) -> None:
        self._model, self._prompt, self._options = model, prompt, options
        self._nearest = nearest
        self._reader = AnswerReader(sources)
        self.sentences: list[Sentence] = []
        self.tokens: list[int] = []
        self._text = ""

    def answer(
        self,
        progress: StageProgress | None,
        should_stop: Callable[[], bool] | None,
    ) -> Iterator[Text | Sentence | Answered]:
        """Text and sentences, at last `Answered`."""
        reason = stats = None
        for text, chunk in self._pieces(progress, should_stop):
            self.tokens += chunk.tokens
            last = chunk.finish_reason is not None
            yield from self._read(text, last)
            if self._reader.repeated:
                break
            reason, stats = chunk.finish_reason, chunk.stats
        yield Answered(
            self._prompt.passages,
            self._nearest,
            self._text.strip(),
            tuple(self.sentences),
            "repeated" if self._reader.repeated else reason,
            stats,
        )

    def _read(self, text: str, last: bool) -> Iterator[Text | Sentence]:
        for piece in self._reader.feed(text, len(self.tokens), last=last):
            if isinstance(piece, str):
                self._text += piece
                yield Text(piece)
            else:
                self.sentences.append(piece)
                yield piece

    def _pieces(
        self,
        progress: StageProgress | None,
        should_stop: Callable[[], bool] | None,
    ) -> Iterator[tuple[str, "Chunk"]]:
        """The answer's text as it comes, without what a model thinks before it."""
        tokenizer = self._model.generator.tokenizer
        marks = find_marks(tokenizer.chat_template)
        end = tokenizer.decode(self._prompt.tokens[-32:], skip_special_tokens=False)
        splitter = marks.splitter(end) if marks else None
        for chunk in stream_reply(
            self._model,
            self._prompt.tokens,
            {"temperature": 0.0, "max_tokens": self._options.max_tokens},
            shown=marks.shown if marks else (),
            progress=progress,
            should_stop=should_stop,
        ):
            text = chunk.text
            if splitter is not None:
                events = splitter.feed(text)
                events += splitter.finish() if chunk.finish_reason else []
                text = "".join(e.text for e in events if not isinstance(e, Reasoning))
            yield text, chunk


def _attribute(
    model: Model,
    prompt: Prompt,
    run: _Run,
    progress: StageProgress | None,
) -> Attributed | NotAttributed:
    if not run.sentences:
        return NotAttributed("the answer has no sentence")
    if len(prompt.spans) != len(prompt.passages):
        return NotAttributed("the tokenizer does not keep where the passages are")
    spans = [sentence.tokens for sentence in run.sentences]
    try:
        return Attributed(
            attribute(model.generator, prompt.tokens, run.tokens, prompt.spans, spans, progress)
        )
    except InputError as error:
        return NotAttributed(str(error))
