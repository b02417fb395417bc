"""From the segments of a page to its lines in reading order: columns, then lines in each.

A page is parted at a gutter: a strip that hardly any segment crosses, with running text on both
sides. What crosses it (a title, a wide figure) is read between what stands above and below it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from .pdf_text import Segment, overlap

_FEWEST = 4  # lines that make a column
_CROSSING = 0.25  # of the segments may cross a gutter
_FILLED = 0.45  # of a column's width, by its usual line; a table's cells are shorter
_SPARSE = 0.2  # enough where the lines of both sides stand at different heights, unlike a table's
_NARROW = 0.2  # of what is parted: a narrower strip holds bullets or terms
_TEXT = 10  # sizes of the font: usual lines of running text are wider, most cells are not
_LONG = 20  # lines, an index say, may be half as wide
_DEPTH = 3  # so at most eight columns


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a column."""

    text: str
    parts: tuple[Segment, ...]  # from left to right
    column: int  # counts the blocks of the page that are read one after another
    left: float
    top: float
    right: float
    bottom: float
    base: float  # where its letters stand
    size: float
    bold: bool
    mono: bool

    @property
    def first(self) -> float:
        """The width of its first word, points."""
        return self.parts[0].first


def reading_order(parts: list[Segment]) -> list[Line]:
    """The page's lines as they are read; text that runs sideways comes last."""
    upright = [part for part in parts if not part.sideways]
    found: list[Line] = []
    for column, block in enumerate(_blocks(upright, _DEPTH)):
        found += _lines(block, column)
    sideways = [part for part in parts if part.sideways]
    return found + [_line([part], len(found) + place) for place, part in enumerate(sideways)]


def _blocks(parts: list[Segment], depth: int) -> Iterator[list[Segment]]:
    gutter = _gutter(parts) if depth else None
    if gutter is None:
        if parts:
            yield parts
        return
    left: list[Segment] = []
    right: list[Segment] = []
    crossing: list[Segment] = []
    for part in sorted(parts, key=lambda part: (part.top, part.left)):
        if part.left < gutter < part.right:
            if left or right:
                yield from _blocks(crossing, 0)
                yield from _blocks(left, depth - 1)
                yield from _blocks(right, depth - 1)
                left, right, crossing = [], [], []
            crossing.append(part)
        else:
            (left if part.right <= gutter else right).append(part)
    yield from _blocks(crossing, 0)
    yield from _blocks(left, depth - 1)
    yield from _blocks(right, depth - 1)


def _gutter(parts: list[Segment]) -> float | None:
    """Where the page is parted, in points from the left; None where it is one column."""
    if len(parts) < 2 * _FEWEST:
        return None
    begin, end = min(part.left for part in parts), max(part.right for part in parts)
    if not 0 < end - begin < 20_000:
        return None
    steps = int(end - begin) + 1
    changes = [0] * (steps + 2)  # of how many segments cover each point
    for part in parts:
        changes[int(part.left - begin)] += 1
        changes[int(part.right - begin) + 1] -= 1
    covered, count = [], 0
    for change in changes[: steps + 1]:
        count += change
        covered.append(count)
    middle = range(steps // 4, max(steps - steps // 4, 1))
    for least in sorted({covered[step] for step in middle}):
        if least > _CROSSING * len(parts):
            return None
        for strip in _runs([step for step in middle if covered[step] == least]):
            gutter = begin + (strip[0] + strip[-1] + 1) / 2
            if _parts_columns(parts, gutter):
                return gutter
    return None


def _runs(steps: list[int]) -> list[list[int]]:
    """Runs of following numbers, the longest first."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return sorted(runs, key=len, reverse=True)


def _parts_columns(parts: list[Segment], gutter: float) -> bool:
    """Whether running text stands on both sides."""
    sides = [
        rows([part for part in parts if part.right <= gutter]),
        rows([part for part in parts if part.left >= gutter]),
    ]
    if min(map(len, sides)) < _FEWEST:
        return False
    whole = max(part.right for part in parts) - min(part.left for part in parts)
    bases = [[max(row, key=lambda part: part.size).base for row in side] for side in sides]
    level = sum(any(abs(base - other) < 1 for other in bases[0]) for base in bases[1])
    filled = _FILLED if 2 * level > min(map(len, sides)) else _SPARSE
    ems = _TEXT if min(map(len, sides)) < _LONG else _TEXT / 2
    for side in sides:
        begin = min(part.left for row in side for part in row)
        end = max(part.right for row in side for part in row)
        widths = [sum(part.right - part.left for part in row) for row in side]
        starts = Counter(round(row[0].left) for row in side)
        size = median(part.size for row in side for part in row)
        if median(widths) < max(filled * (end - begin), ems * size):
            return False
        if starts.most_common(1)[0][1] < 0.3 * len(side) or end - begin < _NARROW * whole:
            return False
    return True


class _Row:
    """Segments of one line, with what is asked of it for each further one."""

    def __init__(self, part: Segment) -> None:
        self.parts = [part]
        self.tall = part  # the first of its largest
        self.left, self.right = part.left, part.right

    def takes(self, part: Segment) -> bool:
        """Whether a segment stands at this line's height, and not on another of it."""
        if overlap(self.tall, part) < 0.4:
            return False
        beside = part.left >= self.right or part.right <= self.left
        return beside or all(
            min(other.right, part.right) - max(other.left, part.left) < part.size
            for other in self.parts
        )

    def add(self, part: Segment) -> None:
        self.parts.append(part)
        self.tall = max(self.tall, part, key=lambda other: other.size)
        self.left, self.right = min(self.left, part.left), max(self.right, part.right)


def rows(parts: list[Segment]) -> list[list[Segment]]:
    """The segments by their lines, each from left to right."""
    found: list[_Row] = []
    for part in sorted(parts, key=lambda part: (part.bottom, part.left)):
        row = next((row for row in found[-3:] if row.takes(part)), None)
        if row is None:
            found.append(_Row(part))
        else:
            row.add(part)
    found.sort(key=lambda row: row.tall.top)
    return [sorted(row.parts, key=lambda part: part.left) for row in found]


def _lines(block: list[Segment], column: int) -> list[Line]:
    return [_line(row, column) for row in rows(block)]


def _line(row: list[Segment], column: int) -> Line:
    if _right_to_left("".join(part.text for part in row)):
        row = row[::-1]
    text = row[0].text
    for before, part in pairwise(row):
        text += _blank(before, part) + part.text
    tall = max(row, key=lambda part: part.size)
    return Line(
        text=text,
        parts=tuple(row),
        column=column,
        left=min(part.left for part in row),
        top=tall.top,
        right=max(part.right for part in row),
        bottom=tall.bottom,
        base=tall.base,
        size=tall.size,
        bold=all(part.bold for part in row),
        mono=all(part.mono for part in row),
    )


def spaces(gap: float, parts: Sequence[Segment]) -> int:
    """How many characters of these monospaced segments go into a gap, at most 60."""
    width = sum(part.right - part.left for part in parts) / sum(len(part.text) for part in parts)
    return min(round(gap / width), 60) if gap > 0 and width > 0 else 0


def _blank(before: Segment, part: Segment) -> str:
    """What parts two segments: as many spaces as fit between those of a listing."""
    size = max(part.size, before.size)
    gap = max(part.left - before.right, before.left - part.right)
    if before.mono and part.mono:
        return " " * spaces(gap, (before, part)) or " "
    return "  " if gap > 2 * size else " "


def _right_to_left(text: str) -> bool:
    """Whether most letters are Hebrew, Arabic, Syriac or Thaana."""
    letters = [char for char in text if char.isalpha()]
    return 2 * sum("\u0590" <= c <= "\u08ff" or "\ufb1d" <= c <= "\ufeff" for c in letters) > len(
        letters
    )
