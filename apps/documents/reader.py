"""A reply as it arrives, cut into sentences, each with its source."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .marks import Claim, ClaimFilter, Sources, Support
from .sentences import content_words, plain, sentence_end

_LONG_SENTENCE = 4  # words; a shorter one may well come twice
_LONG_PART = 3  # words of a part of a sentence
_PARTS = 3  # times that it may come
_PART_END = re.compile(r"[,;]\s")


@dataclass(frozen=True)
class Sentence:
    """A sentence of the answer, and what it rests on."""

    text: str
    support: Support | None
    unfounded: tuple[Claim, ...]  # sources that the model named, and that do not bear it out
    tokens: tuple[int, int]  # of the reply, from and up to


class AnswerReader:
    """Takes a reply's text; gives the same text and, after each sentence, the `Sentence`.

    Marks that the model wrote are taken out of the text: they are shown when they hold. Nothing is
    given any more once a sentence has come twice, or a short one or a part of one three times: the
    model has begun to run in a circle.
    """

    def __init__(self, sources: Sources) -> None:
        self.repeated = False
        self._sources = sources
        self._filter = ClaimFilter()
        self._text = ""  # without claims
        self._begin: int | None = None  # of the sentence under way
        self._shown = 0  # characters given out
        self._claims: list[Claim] = []
        self._said: Counter[str] = Counter()  # sentences, as `plain` spells them
        self._lengths: list[int] = []  # of the text, after each piece
        self._counts: list[int] = []  # of tokens, likewise

    def feed(self, text: str, tokens: int, *, last: bool = False) -> Iterator[str | Sentence]:
        """`tokens`: how many the reply has, with those of this text."""
        for piece in self._filter.feed(text, last=last):
            if isinstance(piece, Claim):
                self._claims.append(piece)
                continue
            self._text += piece
            self._lengths.append(len(self._text))
            self._counts.append(tokens)
            yield from self._cut(False)
        if last:
            yield from self._cut(True)

    def _cut(self, whole: bool) -> Iterator[str | Sentence]:
        while not self.repeated:
            if self._begin is None:
                rest = self._text[self._shown :].lstrip()
                if not rest:
                    return
                self._begin = len(self._text) - len(rest)
            end = sentence_end(self._text, self._begin, lines=True, whole=whole)
            if (circle := _circle(self._text[self._begin : end])) is not None:
                self.repeated = True
                end = self._begin + circle
            known = len(self._text[:end].rstrip())
            said = plain(self._text[self._begin : known])
            enough = [one for one in self._said if _is_enough(one, self._said[one])]
            if not self.repeated and end is None and any(one.startswith(said) for one in enough):
                return  # held until it is clear that it says something else
            if not self.repeated and said in enough:
                self.repeated = True
                return
            if known > self._shown:
                yield self._text[self._shown : known]
                self._shown = known
            if end is None:
                return
            yield from self._finish(self._begin, known)
            self._begin = None

    def _finish(self, begin: int, end: int) -> Iterator[Sentence]:
        text = self._text[begin:end]
        self._said[plain(text)] += 1
        if content_words(text) and not text.endswith(":"):  # which says nothing by itself
            support = self._sources.support(text, self._claims)
            wrong = [one for one in self._claims if not self._sources.confirms(one, support)]
            yield Sentence(text, support, tuple(wrong), self._tokens(begin, end))
            self._claims = []

    def _tokens(self, begin: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._lengths, begin) - 1
        last = bisect_left(self._lengths, end)
        start = self._counts[first] if first >= 0 else 0
        return start, max(start + 1, self._counts[min(last, len(self._counts) - 1)])


def _circle(sentence: str) -> int | None:
    """Where the third coming of one part ends, parts being what commas and semicolons end."""
    parts: Counter[str] = Counter()
    start = 0
    for found in _PART_END.finditer(sentence):
        part = plain(sentence[start : found.start()])
        start = found.end()
        parts[part] += 1
        if parts[part] == _PARTS and len(part.split()) >= _LONG_PART:
            return found.start() + 1
    return None


def _is_enough(sentence: str, times: int) -> bool:
    """Whether a sentence that has come so often must not come again."""
    return times >= (1 if len(sentence.split()) >= _LONG_SENTENCE else 2)
