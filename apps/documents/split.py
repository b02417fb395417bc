"""Pages cut into passages: some paragraphs each, under one heading where that can be."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .pages import Document, Heading, Page
from .passages import Passage
from .sentences import split_sentences

SPLITTER_VERSION = 1  # another one has documents indexed anew

LONGEST = 700  # characters of a passage
# A heading begins a passage unless the one before it would be shorter than this.
_SHORTEST = 100
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")
_SPACE = re.compile(r"\s+")

_Span = tuple[int, int]  # start and end in the page's text


@dataclass(frozen=True)
class Split:
    """A passage, and the numbers of all sections that it has a part of."""

    passage: Passage
    sections: tuple[str, ...]


def split(document: Document) -> Iterator[Split]:
    """The passages of all pages, in order; none holds text of two pages or over LONGEST characters.

    Only white space is left out. A paragraph longer than that is cut at sentence ends, a sentence
    at line ends or between words, and a word anywhere.
    """
    above: Heading | None = None  # the heading that the page begins under
    for page in document.pages:
        headings = sorted(page.headings, key=lambda heading: heading.start)
        for start, end in _passages(page, headings):
            under = _in_force(above, headings, start, end)
            yield Split(
                Passage(
                    document=document.sha256,
                    name=document.path.name,
                    page=page.number,
                    label=page.label,
                    section=_title(_longest_part(under, start, end)),
                    start=start,
                    end=end,
                    text=page.text[start:end],
                ),
                tuple(heading.number for heading, _ in under if heading.number),
            )
        above = headings[-1] if headings else above


def _passages(page: Page, headings: list[Heading]) -> Iterator[_Span]:
    """Runs of paragraphs between two headings, cut into parts of about equal length."""
    text = page.text
    bounds = [0]
    for heading in headings:
        if heading.start - bounds[-1] >= _SHORTEST:
            bounds.append(heading.start)
    for start, end in zip(bounds, [*bounds[1:], len(text)], strict=True):
        run = _trimmed(text, start, end)
        if run[0] < run[1]:
            yield from _packed(text, run)


def _packed(text: str, run: _Span) -> Iterator[_Span]:
    """A run's paragraphs, as many together as come to an equal share of it."""
    whole = run[1] - run[0]
    share = whole / -(-whole // LONGEST)
    begin, last = run[0], run[0]
    for start, end in _units(text, run):
        middle = (start + end) / 2
        if last > begin and (end - begin > LONGEST or middle - begin > share):
            yield begin, last
            begin = start
        last = end
    yield begin, last


def _units(text: str, run: _Span) -> Iterator[_Span]:
    """What is not cut: paragraphs, or what a paragraph that is too long is cut into."""
    start = run[0]
    for gap in [*_PARAGRAPH_END.finditer(text, *run), None]:
        end = _trimmed(text, start, gap.start() if gap else run[1])[1]
        if end - start <= LONGEST:
            if end > start:
                yield start, end
        else:
            for first, last in split_sentences(text[start:end]):
                yield from _pieces(text, start + first, start + last)
        start = gap.end() if gap else run[1]


def _pieces(text: str, start: int, end: int) -> Iterator[_Span]:
    """A sentence in pieces of at most LONGEST: at the last line end, space or character of each."""
    while end - start > LONGEST:
        limit = start + LONGEST
        cut = max(text.rfind("\n", start + LONGEST // 2, limit + 1), start)
        if cut == start:
            cut = max(text.rfind(" ", start + LONGEST // 2, limit + 1), start)
        yield _trimmed(text, start, limit if cut == start else cut)
        start = _trimmed(text, limit if cut == start else cut, end)[0]
    if start < end:
        yield start, end


def _trimmed(text: str, start: int, end: int) -> _Span:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _in_force(
    above: Heading | None, headings: list[Heading], start: int, end: int
) -> list[tuple[Heading, int]]:
    """The headings that text from `start` to `end` stands under, and where each begins to hold."""
    under = [(above, 0)] if above else []
    for heading in headings:
        if heading.start <= start:
            under = [(heading, heading.start)]
        elif heading.start < end:
            under.append((heading, heading.start))
    return under


def _longest_part(under: list[tuple[Heading, int]], start: int, end: int) -> Heading | None:
    if not under:
        return None
    begins = [max(begin, start) for _, begin in under]
    lengths = [to - begin for begin, to in zip(begins, [*begins[1:], end], strict=True)]
    return under[lengths.index(max(lengths))][0]


def _title(heading: Heading | None) -> str:
    if heading is None:
        return ""
    return _SPACE.sub(" ", f"{heading.number} {heading.title}").strip()
