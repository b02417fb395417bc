"""The number that is printed on each page, found where the file does not state it.

A number at the top or bottom edge counts as printed where it rises with the pages: the difference
between a page's place in the file and the number stays the same over a run of pages.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_FEWEST = {"arabic": 3, "ROMAN": 3, "roman": 2}  # pages that make a run: "ii" is hardly chance
_REACH = 8  # unnumbered pages in a run's middle
_ROMAN = re.compile(r"m{0,3}(?:c[md]|d?c{0,3})(?:x[cl]|l?x{0,3})(?:i[xv]|v?i{0,3})")
_VALUES = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l")),
    *((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_ALONE = re.compile(r"\W*(?:\w+\W+)?[0-9ivxlcdmIVXLCDM]+(?:\s*(?:/|of)\s*\d+)?\W*")  # "page 3 of 9"
_MARKS = "-–—|·•[](){}<>.,:;/"


@dataclass(frozen=True)
class _Run:
    style: str  # "arabic", "roman" or "ROMAN"
    offset: int  # page − number
    first: int
    last: int
    support: int  # pages on which the number was seen
    alone: bool  # on most of them with nothing else in its line

    def label(self, page: int) -> str | None:
        value = page - self.offset
        if value < 1:
            return None
        text = str(value) if self.style == "arabic" else roman(value)
        return text.upper() if self.style == "ROMAN" else text


def roman(value: int) -> str:
    """A number from 1 in lower-case roman numerals."""
    text = ""
    for step, letters in _VALUES:
        text += letters * (value // step)
        value %= step
    return text


def page_numbers(line: str) -> list[tuple[str, int]]:
    """What may be a page number at an end of a line: ("arabic", 47), ("roman", 12)."""
    words = [word.strip(_MARKS) for word in re.split(r"\s+|/", line)]
    words = [word for word in words if word]
    ends = {*words[:1], *words[-1:]}
    if total := re.search(r"(\d+)\s*(?:/|of|von|de|sur|av|van)\s*\d+\W*$", line):
        ends.add(total[1])  # "page 3 of 12"
    found = []
    for word in sorted(ends):
        if re.fullmatch(r"[0-9]{1,5}", word):
            found.append(("arabic", int(word)))
        elif word and word in (word.lower(), word.upper()) and _ROMAN.fullmatch(word.lower()):
            found.append(("roman" if word.islower() else "ROMAN", _from_roman(word.lower())))
    return found


def _from_roman(text: str) -> int:
    value = 0
    for step, letters in _VALUES:
        while text.startswith(letters):
            value, text = value + step, text[len(letters) :]
    return value


def printed_labels(edges: Sequence[Sequence[str]]) -> list[str] | None:
    """Each page's printed label from the lines at its edges; None where no run is found.

    Pages without a number within or beside a run count on from it. What stands before the first
    number that could be is "T-1", "T-2" …, as TeX itself calls title pages.
    """
    runs = _runs(edges)
    if not runs:
        return None
    labels: list[str | None] = [None] * len(edges)
    owners: list[_Run | None] = [None] * len(edges)
    for run in sorted(runs, key=lambda run: (not run.alone, -run.support)):
        span = range(run.first, run.last + 1)
        if 4 * sum(owners[page - 1] is not None for page in span) > len(span):
            continue  # the number of something else that rises, such as chapters or exercises
        for page in span:
            if owners[page - 1] is None:
                labels[page - 1], owners[page - 1] = run.label(page), run
    for page in range(len(edges) - 1, 0, -1):  # towards the front, not into another run
        after = owners[page]
        if owners[page - 1] is None and after:
            labels[page - 1] = after.label(page)
            owners[page - 1] = after if labels[page - 1] else None
    for page in range(2, len(edges) + 1):
        before = owners[page - 2]
        if owners[page - 1] is None and before:
            labels[page - 1], owners[page - 1] = before.label(page), before
    return [label or f"T-{page}" for page, label in enumerate(labels, 1)]


def _runs(edges: Sequence[Sequence[str]]) -> list[_Run]:
    seen: dict[tuple[str, int], dict[int, bool]] = defaultdict(dict)  # page → alone
    for page, lines in enumerate(edges, 1):
        for line in lines:
            alone = _ALONE.fullmatch(line) is not None
            for style, value in page_numbers(line):
                if value:
                    pages = seen[style, page - value]
                    pages[page] = pages.get(page, False) or alone
    runs = []
    for (style, offset), pages in seen.items():
        ordered = list(pages)
        part = ordered[:1]
        for page in [*ordered[1:], 1 << 30]:
            if page - part[-1] <= _REACH:
                part.append(page)
                continue
            span = part[-1] - part[0] + 1
            if len(part) >= _FEWEST[style] and 2 * len(part) >= span:
                alone = 2 * sum(pages[each] for each in part) > len(part)
                runs.append(_Run(style, offset, part[0], part[-1], len(part), alone))
            part = [page]
    return runs
