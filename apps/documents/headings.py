"""Headings: their numbers, and where they stand among the lines of a PDF's page."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .paragraphs import clean
from .pdf_layout import Line

_NUMBERED = re.compile(
    r"(?:(?:chapter|section|appendix|part|kapitel|§)\s*)?"
    r"((?:\d{1,3}|[A-Z](?=\.\d))(?:\.\d{1,3})*)[.:)]?(?:\s+|$)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_APPENDIX = re.compile(r"(?:appendix|anhang)\s+([A-Z])[.:)]?\s*(.*)", re.IGNORECASE | re.DOTALL)
_LEADER = re.compile(r"(?:\.\s?){4,}|\s{2,}\d+$")  # a line of a table of contents
_LARGE = 1.15  # of the body's font size
_LONGEST = 150  # characters


@dataclass(frozen=True)
class Found:
    """A heading among a page's lines."""

    first: int  # line
    last: int
    level: int
    number: str
    title: str
    run_in: bool = False  # its paragraph goes on in the same line


def split_number(text: str) -> tuple[str, str]:
    """A heading's number and title: "3.2 Title" → ("3.2", "Title"), "Title" → ("", "Title")."""
    text = " ".join(text.split())
    found = _APPENDIX.fullmatch(text) or _NUMBERED.fullmatch(text)
    if found is None or not any(char.isalpha() for char in text):
        return "", text
    return found[1], found[2] or text


def with_numbers(found: Sequence[Found]) -> list[Found]:
    """The headings in order; a number alone, "Chapter 3:", goes into the title that follows it."""
    kept: list[Found] = []
    for each in found:
        before = kept[-1] if kept else None
        if (
            before is not None
            and _is_number(before.title)
            and before.last + 1 == each.first
            and each.number in ("", before.number)
            and not each.run_in
        ):
            level = min(before.level, each.level)
            kept[-1] = replace(each, first=before.first, level=level, number=before.number)
        else:
            kept.append(each)
    return kept


def _is_number(title: str) -> bool:
    found = _APPENDIX.fullmatch(title) or _NUMBERED.fullmatch(title)
    return found is not None and not found[2]


def letters(text: str) -> str:
    """Only letters and digits, without case and accents: what two spellings of a text share."""
    plain = unicodedata.normalize("NFKD", text.casefold()).casefold().replace("ı", "i")
    return "".join(filter(str.isalnum, plain))


def outlined(lines: Sequence[Line], entries: Sequence[tuple[int, str]]) -> list[Found]:
    """Where the outline's entries for this page, (level from 1, title), stand on it."""
    found: list[Found] = []
    taken: set[int] = set()
    for level, title in entries:
        number, name = split_number(clean(title))
        place = _place(lines, letters(name), letters(number), taken)
        if place is None:
            begun = _begun(lines, name, number, taken)
            if begun is not None:
                found.append(replace(begun, level=level))
            continue
        first, last = place
        taken |= set(range(first, last + 1))
        printed, name = split_number(" ".join(clean(line.text) for line in lines[first : last + 1]))
        found.append(Found(first, last, level, printed or number, name))
    return found


def _begun(lines: Sequence[Line], name: str, number: str, taken: set[int]) -> Found | None:
    """A line that goes on after the title, or has its number alone: a bookmark may hold markup."""
    begins = (letters(number + name), letters(name))
    for place, line in enumerate(lines):
        text = clean(line.text)
        printed_number, printed_name = split_number(text)
        if place in taken:
            continue
        if "." in number and number == printed_number and line.bold:
            return Found(place, place, 0, number, printed_name)
        if len(name) > 5 and letters(text).startswith(begins):
            return Found(place, place, 0, number, name, run_in=True)
    return None


def _place(
    lines: Sequence[Line], name: str, number: str, taken: set[int]
) -> tuple[int, int] | None:
    best, place = 0.0, None
    for first in range(len(lines)):
        text = ""
        for last in range(first, min(first + 3, len(lines))):
            if last in taken or len(text) > len(name) + 12:
                break
            text += lines[last].text
            if letters(split_number(clean(text))[1]) == name or letters(text) == number + name:
                weight = lines[first].size + 0.5 * lines[first].bold
                if name and weight > best:
                    best, place = weight, (first, last)
    return place


def printed(
    lines: Sequence[Line], body: float, sizes: Sequence[float], taken: set[int]
) -> list[Found]:
    """Headings that the print shows: larger than the body, or bold and set apart.

    `sizes` are the document's heading sizes, the largest first: an unnumbered one's level.
    """
    found: list[Found] = []
    place = 0
    while place < len(lines):
        if place in taken or not _prominent(lines, place, body):
            place += 1
            continue
        last = place
        while last + 1 < len(lines) and last - place < 2 and _goes_on(lines, last, taken, body):
            last += 1
        text = " ".join(clean(line.text).strip() for line in lines[place : last + 1])
        if len(text) <= _LONGEST and sum(map(str.isalpha, text)) >= 3:
            number, title = split_number(text)
            size = round(lines[place].size)
            rank = 1 + sum(other > size for other in sizes)
            level = number.count(".") + 1 if number else min(rank, 6)
            found.append(Found(place, last, level, number, title))
        place = last + 1
    lines_used = sum(each.last - each.first + 1 for each in found)
    if lines_used > max(4, 0.4 * len(lines)):
        return []  # a title page, a poster: nothing there is a heading of anything
    return found


def is_large(line: Line, body: float) -> bool:
    return line.size >= _LARGE * body and not line.mono


def _prominent(lines: Sequence[Line], place: int, body: float) -> bool:
    line = lines[place]
    text = clean(line.text).strip()
    if len(text) > _LONGEST or line.mono or _LEADER.search(text):
        return False
    if is_large(line, body):
        return True
    if not line.bold or line.size < 0.95 * body or len(text) > 80:
        return False
    if text.endswith((",", ";", ":")) or (text.endswith(".") and not split_number(text)[0]):
        return False
    above = lines[place - 1] if place else None
    below = lines[place + 1] if place + 1 < len(lines) else None
    if below is None or below.bold:
        return False
    apart = above is None or above.column != line.column
    apart = apart or line.top - above.bottom > 0.45 * line.size
    return apart and (bool(split_number(text)[0]) or text[:1].isupper())


def _goes_on(lines: Sequence[Line], last: int, taken: set[int], body: float) -> bool:
    one, other = lines[last], lines[last + 1]
    return (
        last + 1 not in taken
        and one.column == other.column
        and is_large(one, body)
        and abs(one.size - other.size) < 0.05 * one.size
        and one.bold == other.bold
        and 0 <= other.top - one.bottom + 0.3 * one.size < 0.9 * one.size
        and not split_number(clean(other.text))[0]
        and not _LEADER.search(other.text)
    )
