"""Which sentence of the given passages stands behind a sentence of the answer, if any does.

The rule. A sentence of a passage, or two that follow each other, supports a sentence of the answer

1. `quoted`: when the answer's sentence, of at least four words, stands in it word for word;
2. `words`: when it holds more than `WORDS` of the answer's content words, three at the least;
3. `meaning`: when its MiniLM vector is within a cosine of `MEANING` of the answer's, and it holds
   at least `SHARED` of the answer's content words, two at the least.

2 and 3 need more: every number of the answer's sentence is in it, and both have as many
negations, two sentences none.
What is found must then stand, white space and hyphenation apart, on the page that it names.
docs/ask.md has how often the rule is wrong.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .passages import Passage
from .sentences import content_words, negations, numbers, plain, split_sentences

if TYPE_CHECKING:
    from ...runtime.embedder import Embedder

WORDS = 0.8  # share of the answer's content words
MEANING = 0.8  # cosine
SHARED = 0.4  # share of the words that a mark by meaning still needs
_FEWEST_WORDS = 3
_FEWEST_SHARED = 2  # of them in a mark by meaning
_FEWEST_QUOTED = 4

# What models write to name a passage, "[2]", or a page: "[p. 47]", "(page 47)", "[pages 12-13]".
_CLAIM = re.compile(
    r"(?:(?:\s|(?<![\w)\]}]))\[(?P<number>\d{1,2})\]"
    r"|\s?[\[(](?:see )?(?:pages?|pp?\.)\s?(?P<label>[\w.-]{1,12})(?:, [^\])\n]{1,60})?[\])])",
    re.IGNORECASE,
)
_LONGEST_CLAIM = 90
_CLAIM_BEGINS = re.compile(r"\s?[\[(][^\])\n]*$|\s$")


@dataclass(frozen=True)
class Support:
    """The sentence of a passage that a sentence of the answer rests on."""

    passage: int  # its place among those that were given
    start: int  # in the passage's text, in characters
    end: int
    quote: str  # that text, on one line
    rule: str  # "quoted", "words" or "meaning"
    score: float  # share of words, or cosine


@dataclass(frozen=True)
class Claim:
    """A source that the model named itself: the passage by its number, or a page by its label."""

    number: int | None
    label: str | None


@dataclass(frozen=True)
class _Candidate:
    passage: int
    start: int
    end: int
    text: str
    plain: str
    words: frozenset[str]
    numbers: frozenset[str]
    negations: int
    alone: bool  # one sentence, not two


def stands_on(quote: str, page: str) -> bool:
    """Whether `quote` is on the page, white space, hyphenation and spelling of quotes apart."""
    return bool(wanted := plain(quote)) and wanted in plain(page)


class Sources:
    """The passages that the model was given, ready to be asked for support."""

    def __init__(
        self,
        passages: Sequence[Passage],
        pages: Sequence[str],
        embedder: "Embedder | None" = None,
    ) -> None:
        """`pages`: the text of each passage's page, where quotes must stand. Without `embedder`
        there are no marks by meaning."""
        self.passages, self._embedder = tuple(passages), embedder
        self._candidates = [
            candidate
            for index, (passage, page) in enumerate(zip(passages, pages, strict=True))
            for candidate in _on_page(_candidates(index, passage.text), passage, page)
        ]

    def support(self, sentence: str, claims: Collection[Claim] = ()) -> Support | None:
        """The best support for a sentence of the answer; that in a passage that the model named
        goes first, whichever rule it holds by."""
        named = [place for place in range(len(self.passages)) if self._is_named(place, claims)]
        for places in (named, range(len(self.passages))):
            chosen = [one for one in self._candidates if one.passage in places]
            found = chosen and (
                self._quoted(sentence, chosen)
                or self._by_words(sentence, chosen)
                or self._by_meaning(sentence, chosen)
            )
            if found:
                return found
        return None

    def nearest(self, question: str) -> list[str]:
        """The sentence of each passage that is nearest to the question, on one line; "" where a
        passage has none. By cosine, or without an embedder by shared words."""
        words = set(content_words(question))
        if self._embedder is None or not self._candidates:
            scores = [len(words & one.words) / (len(one.words) or 1) for one in self._candidates]
        else:
            vector = self._embedder.embed([question])
            scores = list(self._embedder.similarity(vector, self._vectors)[0])
        found = [""] * len(self.passages)
        best = [-np.inf] * len(self.passages)
        for one, score in zip(self._candidates, scores, strict=True):
            if one.alone and score > best[one.passage]:
                found[one.passage], best[one.passage] = one.text, score
        return found

    def confirms(self, claim: Claim, support: Support | None) -> bool:
        """Whether the support is where the model said."""
        return support is not None and self._is_named(support.passage, [claim])

    def _is_named(self, place: int, claims: Collection[Claim]) -> bool:
        label = self.passages[place].label
        return any(claim.number == place + 1 or claim.label == label for claim in claims)

    def _quoted(self, sentence: str, chosen: list[_Candidate]) -> Support | None:
        wanted = plain(sentence).rstrip(".!?:;, ").lstrip("-*• ")
        if len(wanted.split()) < _FEWEST_QUOTED:
            return None
        holding = [one for one in chosen if wanted in one.plain]
        if not holding:
            return None
        return _support(min(holding, key=lambda one: len(one.text)), "quoted", 1.0)

    def _by_words(self, sentence: str, chosen: list[_Candidate]) -> Support | None:
        words = set(content_words(sentence))
        if len(words) < _FEWEST_WORDS:
            return None
        scored = [
            (len(words & one.words) / len(words), -len(one.text), one)
            for one in _agreeing(sentence, chosen)
            if len(words & one.words) >= _FEWEST_WORDS
        ]
        best = max(scored, key=lambda item: item[:2], default=None)
        return _support(best[2], "words", best[0]) if best and best[0] > WORDS else None

    def _by_meaning(self, sentence: str, chosen: list[_Candidate]) -> Support | None:
        words = set(content_words(sentence))
        agreeing = [
            one
            for one in _agreeing(sentence, chosen)
            if len(words & one.words) >= max(_FEWEST_SHARED, SHARED * len(words))
        ]
        if self._embedder is None or not agreeing:
            return None
        vector = self._embedder.embed([sentence])
        places = [self._candidates.index(one) for one in agreeing]
        scores = self._embedder.similarity(vector, self._vectors[places])[0]
        best = int(np.argmax(scores))
        if scores[best] < MEANING:
            return None
        return _support(agreeing[best], "meaning", float(scores[best]))

    @cached_property
    def _vectors(self) -> np.ndarray:
        assert self._embedder is not None
        return self._embedder.embed([one.text for one in self._candidates])


def _candidates(passage: int, text: str) -> list[_Candidate]:
    """Each sentence, and each two that follow each other within a paragraph."""
    spans = split_sentences(text)
    pairs = [
        (first[0], second[1])
        for first, second in pairwise(spans)
        if "\n\n" not in text[first[1] : second[0]]
    ]
    made = []
    for at, (start, end) in enumerate([*spans, *pairs]):
        part = text[start:end]
        if words := content_words(part):
            made.append(
                _Candidate(
                    passage, start, end, " ".join(part.split()), plain(part), frozenset(words),
                    frozenset(numbers(part)), negations(part), at < len(spans),
                )
            )  # fmt: skip
    return made


def _on_page(candidates: list[_Candidate], passage: Passage, page: str) -> list[_Candidate]:
    """Those that stand on the page: all, where the whole passage does at its place.

    A page is read through for others only: of a file without pages it is the whole text.
    """
    if page[passage.start : passage.end] == passage.text:
        return candidates
    return [one for one in candidates if stands_on(one.text, page)]


def _agreeing(sentence: str, chosen: list[_Candidate]) -> list[_Candidate]:
    """Those that have the sentence's numbers, and deny as much as it does.

    Of two sentences it cannot be told which part a negation belongs to, so they have none.
    """
    wanted, denied = numbers(sentence), negations(sentence)
    return [
        one
        for one in chosen
        if wanted <= one.numbers and one.negations == denied and (one.alone or not denied)
    ]


def _support(found: _Candidate, rule: str, score: float) -> Support:
    return Support(found.passage, found.start, found.end, found.text, rule, score)


class ClaimFilter:
    """Takes a reply as it arrives, gives its text without the sources that the model named."""

    def __init__(self) -> None:
        self._text, self._at = "", 0  # `_at`: what has been given

    def feed(self, text: str, *, last: bool = False) -> list[str | Claim]:
        """Pieces of text and claims, in order; with `last` nothing is held back."""
        self._text += text
        pieces: list[str | Claim] = []
        while found := _CLAIM.search(self._text, self._at):
            pieces.append(self._text[self._at : found.start()])
            number = found["number"]
            pieces.append(Claim(int(number) if number else None, found["label"]))
            self._at = found.end()
        end = len(self._text) if last else self._held_from()
        pieces.append(self._text[self._at : end])
        self._at = end
        return [piece for piece in pieces if piece]

    def _held_from(self) -> int:
        """Where what may become a claim begins, or the end of the text."""
        at = self._at
        while begun := _CLAIM_BEGINS.search(self._text, at):
            if len(self._text) - begun.start() <= _LONGEST_CLAIM:
                return begun.start()
            at = begun.start() + 1
        return len(self._text)
