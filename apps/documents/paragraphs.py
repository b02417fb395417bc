"""From lines to a page's text: words made whole, wrapped lines joined, paragraphs parted."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from .pdf_layout import Line, spaces

_HYPHENS = "-\u2010\u00ad"
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_COMPOUNDS = ("self", "well", "quasi")  # that begin compounds far more often than words
_BULLET = re.compile(r"(?:[•◦‣▪∗*–—-]|\(?(?:\d{1,3}|[a-z])[.)])\s")
_SURE_BULLETS = "•◦‣▪∗"  # which begin no line otherwise
_NAMELESS = re.compile(r"[\u0000-\u0008\u000e-\u001f\u007f-\u009f](?=\s)")  # TeX's bullet
_ACCENTS = {"´": "\u0301", "¨": "\u0308", "ˇ": "\u030c", "¸": "\u0327", "˝": "\u030b"}
_ACCENTED = re.compile(f"([{''.join(_ACCENTS)}]) ?([^\\W\\d_])")
_LEADER = re.compile(
    r"(?:\.\s?){4,}[\s\d,ivxlc–-]*$"
)  # in a line of a table of contents or an index
_APART = 1.12  # times the usual pitch parts paragraphs
# Characters without width or meaning in running text; marks of direction stay.
_DROPPED = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u2060\ufeff\ufffe\uffff]"
)
_LIGATURES = re.compile("[\ufb00-\ufb06]")
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000\t]")


def clean(text: str) -> str:
    """Ligatures as letters, odd spaces as spaces, no control characters; composed (NFC).

    An accent that stands before its letter, as old TeX fonts set it, goes onto the letter.
    Nothing else of NFKC: it would turn x² into x2.
    """
    text = _LIGATURES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = _ACCENTED.sub(_accented, text)
    text = _DROPPED.sub("", _SPACES.sub(" ", text))
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def _accented(found: re.Match[str]) -> str:
    letter = {"ı": "i", "ȷ": "j"}.get(found[2], found[2])
    whole = unicodedata.normalize("NFC", letter + _ACCENTS[found[1]])
    return whole if len(whole) == 1 else found[0]


class Words:
    """How often each word stands in a document, whole and with a hyphen inside."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        for line in lines:
            kept = re.sub(r"[\w-]+[-\u2010\u00ad]\s*$", "", line)  # a part of a word is none
            self.counts.update(_WORD.findall(clean(kept).lower()))

    def joined(self, before: str, after: str) -> str:
        """`before`, which ends with a hyphen at the end of a line, and `after` as one text."""
        stem = before[:-1]
        begin, end = re.search(r"[\w-]*$", stem)[0], re.match(r"\w*", after)[0]
        if before.endswith("\u00ad"):
            return stem + after
        if not begin or not begin[-1].isalpha() or not end:
            return before + (" " if not end else "") + after
        capitals = begin.isupper() and end.isupper() and min(len(begin), len(end)) > 1
        if not end[0].islower() and not capitals:
            return before + after
        whole, compound = (begin + end).lower(), f"{begin}-{end}".lower()
        if self.counts[whole] or self.counts[compound]:
            keep = self.counts[compound] > self.counts[whole]
        else:
            words = self.counts[begin.lower()] and self.counts[end.lower()]
            keep = begin.lower() in _COMPOUNDS or bool(words and len(begin) >= 4 and len(end) >= 4)
        return (before if keep else stem) + after


def compose(lines: Sequence[Line], headings: Sequence[int], words: Words) -> tuple[str, list[int]]:
    """The page's text, and where each line begins in it.

    `headings` has a heading's number (from 1) for each line of it, 0 for a line of the body.
    """
    lines = _with_listings([_with_bullet(line) for line in lines])
    usual = _usual_pitch(lines)
    limits = _limits(lines, headings, usual)
    text, starts = "", []
    first = 0  # of the paragraph
    for place, line in enumerate(lines):
        new = clean(line.text.rstrip("\u00ad")).strip() + ("\u00ad" * line.text.endswith("\u00ad"))
        if line.mono:
            new = _indent(lines, place) + new
        if place == 0 or not text:
            starts.append(len(text) + len(new) - len(new.lstrip()))
            text += new
            continue
        how = _between(lines, headings, place, first, usual, limits)
        text = text.rstrip("\u00ad") if how != " " else text
        if how == " " and text.endswith(tuple(_HYPHENS)) and not text.endswith("--"):
            known = text.rfind("\n") + 1
            text = text[:known] + words.joined(text[known:], new)
            starts.append(max(len(text) - len(new), 0))
        else:
            text += how + new
            starts.append(len(text) - len(new.lstrip()))
        if how == "\n\n":
            first = place
    return text.replace("\u00ad", " ").rstrip(), starts


def _with_bullet(line: Line) -> Line:
    if _NAMELESS.match(line.text):
        return replace(line, text=f"•{line.text[1:]}")
    return line


def _with_listings(lines: Sequence[Line]) -> list[Line]:
    """The lines, monospaced only where they are a listing: not a word of code that was wrapped."""
    kept = list(lines)
    for place, (above, below) in enumerate(pairwise(lines), 1):
        if below.mono and not kept[place - 1].mono:
            level = abs(above.left - below.left) < 0.3 * below.size
            near = 0 < below.base - above.base < 1.5 * below.size
            if level and near and above.column == below.column:
                kept[place] = replace(below, mono=False)
    return kept


def _usual_pitch(lines: Sequence[Line]) -> float:
    """From base line to base line in a paragraph, in sizes of the font."""
    pitches = [
        (below.base - above.base) / below.size
        for above, below in pairwise(lines)
        if above.column == below.column and abs(above.size - below.size) < 0.1 * below.size
    ]
    return min(median(pitches), 3.0) if pitches else 1.2


def _pitch(above: Line, below: Line, usual: float) -> float:
    """From base line to base line, as a multiple of the usual; inf where it cannot be compared."""
    size = max(above.size, below.size)
    alike = abs(above.size - below.size) <= 0.15 * size and above.mono == below.mono
    pitch = (below.base - above.base) / size
    if not alike or above.column != below.column or pitch <= -0.5:
        return math.inf
    return pitch / max(usual, 0.5)


def _limits(lines: Sequence[Line], headings: Sequence[int], usual: float) -> list[float]:
    """How far to the right each line could have run: as far as the longest of its block.

    A block of fewer than three lines says little: those could have filled their column.
    """
    columns: dict[int, float] = {}
    for line in lines:
        columns[line.column] = max(columns.get(line.column, 0.0), line.right)
    groups: list[list[Line]] = []
    for place, line in enumerate(lines):
        if (
            place
            and headings[place] == headings[place - 1]
            and _pitch(lines[place - 1], line, usual) <= _APART
        ):
            groups[-1].append(line)
        else:
            groups.append([line])
    limits: list[float] = []
    for group in groups:
        right = max(line.right for line in group)
        limits += [right if len(group) > 2 else columns[group[0].column]] * len(group)
    return limits


def _between(
    lines: Sequence[Line],
    headings: Sequence[int],
    place: int,
    first: int,
    usual: float,
    limits: Sequence[float],
) -> str:
    """What parts a line from the one before it; " " where it goes on."""
    above, below = lines[place - 1], lines[place]
    if headings[place - 1] != headings[place]:
        return "\n\n"
    if headings[place]:
        return " "
    wrapped = limits[place - 1] - above.right < below.first + 0.4 * below.size
    if above.column != below.column:
        begin = clean(below.text)[:1]
        alike = abs(above.size - below.size) < 0.05 * below.size and above.mono == below.mono
        return " " if wrapped and alike and begin.islower() and not above.mono else "\n\n"
    pitch = _pitch(above, below, usual)
    if pitch > _APART:
        inside = wrapped and pitch < 1.6 and not above.mono and clean(below.text)[:1].islower()
        return " " if inside and not above.text.rstrip().endswith(".") else "\n\n"
    if above.mono or _LEADER.search(above.text):
        return "\n"
    begin, end = clean(below.text)[:1], above.text.rstrip()[-2:]
    if begin.isalnum() and end[:1].isalpha() and end[1:] in _HYPHENS:
        return " "
    # An item's text goes on where it began, after the bullet.
    hangs = wrapped and below.left > above.left and _BULLET.match(above.text)
    if not hangs and _indented(lines, place, first, usual):
        return "\n\n"
    # Rows of a table both have wide gaps, and begin at the same place.
    row = abs(below.left - above.left) < 0.5 * below.size
    row = row and "  " in above.text and "  " in below.text
    if row or _is_item(above, below, wrapped):
        return "\n"
    return " " if wrapped else "\n"


def _is_item(above: Line, below: Line, wrapped: bool) -> bool:
    """Whether a line begins an item of a list: "d. If" in the midst of a sentence does not."""
    if not _BULLET.match(below.text):
        return False
    level = abs(below.left - above.left) < 0.5 * below.size
    ended = above.text.rstrip().endswith((".", ":", ";", "!", "?", ","))
    sure = below.text.startswith(tuple(_SURE_BULLETS)) or _BULLET.match(above.text)
    return bool(sure) or ended or not (level and wrapped)


def _indented(lines: Sequence[Line], place: int, first: int, usual: float) -> bool:
    """Whether a line's indent, or its end, begins a paragraph; `first` is the last one's line."""
    above, below = lines[place - 1], lines[place]
    indent = (below.left - above.left) / below.size
    if indent > 0.8:
        after = lines[place + 1] if place + 1 < len(lines) else None
        near = after is not None and _pitch(below, after, usual) <= _APART
        return near and (below.left - after.left) / below.size > 0.5
    return indent < -3 or (indent < -0.8 and first != place - 1)


def _indent(lines: Sequence[Line], place: int) -> str:
    """The spaces before a line of code: against the leftmost line of its listing."""
    line = lines[place]
    begin = end = place
    while begin and lines[begin - 1].mono and lines[begin - 1].column == line.column:
        begin -= 1
    while end + 1 < len(lines) and lines[end + 1].mono and lines[end + 1].column == line.column:
        end += 1
    left = min(other.left for other in lines[begin : end + 1])
    return " " * spaces(line.left - left, line.parts)
