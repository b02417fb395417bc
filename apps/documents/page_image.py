"""A page of a PDF as a picture, and where on it a quotation stands."""

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from .headings import letters
from .pages import Box
from .pdf_layout import reading_order
from .pdf_text import PDFIUM, Characters, open_page, open_pdf, open_text, segments, view

_WIDEST = 8_000  # pixels
_FAR = 40  # characters without a letter between two of a quotation: another place on the page
_PIXELS = 1 << 25  # a page much higher than wide is rendered smaller


def render_page(path: Path, number: int, width: int) -> bytes:
    """Page `number` (physical, from 1) as a PNG, `width` pixels wide.

    A page so high that its picture had more than 2²⁵ pixels comes out narrower.
    Raises InputError: what `open_pdf` raises, no such page, or a width outside 1…8,000.
    """
    if not 1 <= width <= _WIDEST:
        raise InputError(f"the width is {width} pixels; give 1 to {_WIDEST:,}")
    with open_pdf(path) as document:
        _check(document, number, path)
        with open_page(document, number, path.name) as page:
            across, down = (max(side, 1e-3) for side in page.get_size())
            scale = min(width / across, (_PIXELS / (across * down)) ** 0.5)
            bitmap = page.render(scale=scale, rev_byteorder=True, force_bitmap_format=None)
            try:
                return _png(bitmap)
            finally:
                bitmap.close()


def locate(path: Path, number: int, quote: str) -> list[Box]:
    """Where `quote` stands on page `number`, a box for each line; [] where it does not.

    Only letters and digits are compared: line ends, hyphens and ligatures do not matter.
    Raises InputError: what `open_pdf` raises, or no such page.
    """
    wanted = letters(quote)
    with open_pdf(path) as document:
        _check(document, number, path)
        with open_text(document, number, path.name) as (page, textpage):
            return _boxes(textpage, page, wanted) if wanted else []


def _check(document: Any, number: int, path: Path) -> None:
    with PDFIUM:
        count = len(document)
    if not 1 <= number <= count:
        raise InputError(f"{path.name} has pages 1 to {count}, there is no page {number}")


def _boxes(textpage: Any, page: Any, wanted: str) -> list[Box]:
    shown = view(page)
    characters = Characters(textpage, shown)
    units = characters.units
    lines = reading_order(segments(textpage, shown))
    ordered = [
        [index for part in line.parts for index in range(part.start, part.end)] for line in lines
    ]
    # What the layout reads as one text first, then the file's own order.
    for runs in (ordered, [list(range(len(units)))]):
        found = _search(units, runs, wanted)
        if found:
            return list(_merged(characters, found))
    return []


def _search(units: list[int], runs: list[list[int]], wanted: str) -> list[int]:
    """The characters that spell `wanted`, in order."""
    text, places = [], []
    for index in (index for run in runs for index in run):
        for char in letters(chr(units[index])):
            text.append(char)
            places.append(index)
    begin = "".join(text).find(wanted)
    return [] if begin < 0 else places[begin : begin + len(wanted)]


def _merged(characters: Characters, found: list[int]) -> Iterator[Box]:
    # Along the line and across it: the other way round where the text runs up or down.
    along, across = (0, 1) if characters.size_and_turn(found[0])[1] % 2 == 0 else (1, 0)
    boxes: list[tuple[float, ...]] = []
    for before, index in pairwise([-9, *found]):
        box = characters.box(index)
        if boxes and index - before < _FAR:
            last = boxes[-1]
            shared = min(last[across + 2], box[across + 2]) - max(last[across], box[across])
            height = min(last[across + 2] - last[across], box[across + 2] - box[across])
            gap = max(box[along] - last[along + 2], last[along] - box[along + 2])
            if shared > 0.4 * height > 0 and gap < 4 * height:
                least, most = map(min, last[:2], box[:2]), map(max, last[2:], box[2:])
                boxes[-1] = (*least, *most)
                continue
        boxes.append(box)
    shown = characters.shown
    for left, top, right, bottom in boxes:
        yield Box(
            _fraction(left, shown.width),
            _fraction(top, shown.height),
            _fraction(right, shown.width),
            _fraction(bottom, shown.height),
        )


def _fraction(value: float, whole: float) -> float:
    return min(max(value / whole, 0.0), 1.0) if whole > 0 else 0.0


def _png(bitmap: Any) -> bytes:
    """A bitmap as a PNG file (ISO/IEC 15948), each row unfiltered."""
    colour = {1: 0, 3: 2, 4: 2}[bitmap.n_channels]  # grey or RGB; the filling byte is left out
    pixels = bitmap.to_numpy()
    if bitmap.n_channels == 4:
        pixels = pixels[:, :, :3]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", bitmap.width, bitmap.height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
