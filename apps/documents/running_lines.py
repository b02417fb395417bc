"""Headers and footers that run through a document: found by comparing its pages, then left out."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from .pdf_layout import rows
from .pdf_text import Segment

_LINES = 3  # a header or footer has at most
_PAGES = 3  # on which one must stand
_REACH = 4  # pages between two of them: chapters' names stand on every other page
_GAP = 0.8  # of its font size, between it and the body
_LARGE = 1.2  # of the body's font size: larger lines are headings

Row = list[Segment]


def edge_lines(parts: Sequence[Segment]) -> list[str]:
    """The text of the lines at a page's top and bottom."""
    found = rows([part for part in parts if not part.sideways])
    near = found if len(found) <= 4 else found[:2] + found[-2:]
    return [_text(row) for row in near]


def without_running_lines(
    pages: Sequence[list[Segment]], labels: Sequence[str], body: float
) -> list[list[Segment]]:
    """The pages' segments without running headers and footers; `body` is the text's font size."""
    blocks = [_blocks(parts, body) for parts in pages]
    seen: dict[tuple[str, ...], list[int]] = defaultdict(list)
    places: dict[tuple[str, int], int] = defaultdict(int)
    for page, found in enumerate(blocks):
        for edge, block, apart in found:
            if apart:
                seen[edge, *_masked(block, labels[page], page + 1)].append(page)
    running = {key for key, where in seen.items() if _repeats(where)}
    for page, found in enumerate(blocks):
        for edge, block, apart in found:
            if apart and (edge, *_masked(block, labels[page], page + 1)) in running:
                places[edge, round(block[0][0].bottom)] += 1
    kept = []
    for page, (parts, found) in enumerate(zip(pages, blocks, strict=True)):
        dropped: set[int] = set()
        for edge, block, apart in found:
            masked = _masked(block, labels[page], page + 1)
            near = round(block[0][0].bottom)
            placed = sum(places[edge, near + shift] for shift in (-1, 0, 1)) >= _PAGES
            alone = masked == ("#",) and len(labels) >= _PAGES
            if (edge, *masked) in running or (
                (apart or alone) and (placed or alone) and any("#" in text for text in masked)
            ):
                dropped |= {id(part) for row in block for part in row}
        kept.append([part for part in parts if id(part) not in dropped])
    return kept


def _repeats(pages: list[int]) -> bool:
    near = 1
    for before, page in pairwise(pages):
        near = near + 1 if page - before <= _REACH else 1
        if near >= _PAGES:
            return True
    return False


def _blocks(parts: list[Segment], body: float) -> list[tuple[str, list[Row], bool]]:
    """The lines at each edge that may be a header or footer, and whether a gap sets them apart."""
    found = rows([part for part in parts if not part.sideways])
    blocks = []
    for edge, ordered in (("top", found), ("bottom", found[::-1])):
        for count in range(1, min(_LINES, len(ordered)) + 1):
            if max(part.size for part in ordered[count - 1]) > _LARGE * body:
                break
            if count == len(ordered):
                blocks.append((edge, ordered[:count], False))
            elif _apart(ordered[count - 1], ordered[count]):
                blocks.append((edge, ordered[:count], True))
                break
        else:
            if len(ordered) > _LINES:
                blocks.append((edge, ordered[:1], False))
    return blocks


def _apart(one: Row, other: Row) -> bool:
    above, below = sorted((one, other), key=lambda row: row[0].top)
    gap = min(part.top for part in below) - max(part.bottom for part in above)
    return gap >= _GAP * max(part.size for part in one)


def _masked(block: list[Row], label: str, number: int) -> tuple[str, ...]:
    """The block's lines with the page's number as "#"."""
    numbers = "|".join(re.escape(text) for text in {label, str(number)})
    mask = re.compile(rf"(?<![\w.])(?:{numbers})(?![\w]|\.\d)", re.IGNORECASE)
    return tuple(mask.sub("#", _text(row)).strip("-–—[]() ") for row in block)


def _text(row: Row) -> str:
    return " ".join(part.text for part in row)
