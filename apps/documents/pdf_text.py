"""The words of a PDF's page with their places, through pdfium."""

import ctypes
import functools
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError

# pdfium is not thread-safe: whoever calls it holds this, page by page.
PDFIUM = threading.RLock()

_MONOSPACED = re.compile(r"mono|courier|typewriter|consol|cmtt|cmsltt|sftt|cmitt|menlo", re.I)
_BOLD = re.compile(r"bold|black|heavy|cmbx|cmssbx|sfbx", re.I)
_FIXED_PITCH = 1  # PDF 32000-1, table 123
_HYPHENS = (0x02, 0xFFFE)  # what pdfium puts for a hyphen and the end of the line after it
_BLANKS = frozenset((9, 10, 11, 12, 13, 32, 0xA0, 0x3000))
_MOST_CHARACTERS = 1 << 20  # of a page: books have 5,000, and each takes 10 µs
_SPACE = 0.18  # of the font size: a wider gap inside a word is a space
_WORD_GAP = 0.9  # of the font size: a wider gap parts two segments of a line


@dataclass(frozen=True, slots=True)
class Segment:
    """Words that stand together on a line; points from the top left corner of the upright page."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    base: float  # of the line, where its letters stand
    first: float  # width of the first word
    size: float  # of the font, points
    bold: bool
    mono: bool
    start: int  # in pdfium's characters of the page
    end: int
    sideways: bool = False  # runs in another direction than most of the page


@dataclass(frozen=True, slots=True)
class View:
    """From a page's own coordinates to points from the top left corner, as the page is shown."""

    matrix: tuple[
        float, float, float, float, float, float
    ]  # x' = a·x + c·y + e, y' = b·x + d·y + f
    width: float
    height: float

    def box(self, left: float, bottom: float, right: float, top: float) -> tuple[float, ...]:
        """(left, top, right, bottom) as shown."""
        a, b, c, d, e, f = self.matrix
        x0, y0 = a * left + c * bottom + e, b * left + d * bottom + f
        x1, y1 = a * right + c * top + e, b * right + d * top + f
        return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


@contextmanager
def open_pdf(path: Path) -> Iterator[Any]:
    """The file as a pypdfium2.PdfDocument; calls to it belong under `PDFIUM`.

    Raises InputError: encrypted, damaged, or no page in it.
    """
    import pypdfium2

    with PDFIUM:
        try:
            document = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            raise InputError(_refusal(path, pypdfium2.raw.FPDF_GetLastError(), error)) from None
    try:
        with PDFIUM:
            count = len(document)
        if count == 0:
            raise InputError(f"{path.name} has no pages; give a PDF with at least one")
        yield document
    finally:
        with PDFIUM:
            document.close()


def _refusal(path: Path, code: int, error: Exception) -> str:
    from pypdfium2 import raw

    if code == raw.FPDF_ERR_PASSWORD or "password" in str(error).lower():
        return (
            f"{path.name} is encrypted and needs a password; save a copy without one, "
            "for example with qpdf --decrypt"
        )
    if code == raw.FPDF_ERR_SECURITY:
        return f"{path.name} is encrypted in a way that cannot be read; save a copy without it"
    return f"{path.name} is damaged or has no pages; repair it, for example with qpdf"


@contextmanager
def open_page(document: Any, number: int, name: str) -> Iterator[Any]:
    """Page `number`, from 1, under `PDFIUM`. Raises InputError where the page is damaged."""
    import pypdfium2

    with PDFIUM:
        try:
            page = document[number - 1]
        except pypdfium2.PdfiumError:
            raise InputError(
                f"page {number} of {name} is damaged; repair the file, for example with qpdf"
            ) from None
        try:
            yield page
        finally:
            page.close()


@contextmanager
def open_text(document: Any, number: int, name: str) -> Iterator[tuple[Any, Any]]:
    """Page `number`, from 1, and its text, under `PDFIUM`.

    Raises InputError where the page is damaged or has more than 2²⁰ characters.
    """
    with open_page(document, number, name) as page:
        textpage = page.get_textpage()
        try:
            count = textpage.count_chars()
            if count > _MOST_CHARACTERS:
                raise InputError(
                    f"page {number} of {name} has {count:,} characters, at most "
                    f"{_MOST_CHARACTERS:,} are read; save the file without that page"
                )
            yield page, textpage
        finally:
            textpage.close()


def view(page: Any) -> View:
    """How the page is shown: its rotation and crop box taken into account."""
    from pypdfium2 import raw

    width, height = page.get_size()
    scale, reach = 1 << 24, 1024.0
    x, y = ctypes.c_int(), ctypes.c_int()

    def shown(px: float, py: float) -> tuple[float, float]:
        raw.FPDF_PageToDevice(page, 0, 0, scale, scale, 0, px, py, x, y)
        return x.value * width / scale, y.value * height / scale

    (ex, ey), (ax, ay), (cx, cy) = shown(0, 0), shown(reach, 0), shown(0, reach)
    linear = (ax - ex) / reach, (ay - ey) / reach, (cx - ex) / reach, (cy - ey) / reach
    return View((*linear, ex, ey), width, height)


def code_units(textpage: Any) -> list[int]:
    """pdfium's characters of the page; a surrogate pair is its code point, then 0."""
    from pypdfium2 import raw

    get = raw.FPDFText_GetUnicode
    units = [get(textpage, index) for index in range(textpage.count_chars())]
    for index, unit in enumerate(units):
        if 0xD800 <= unit < 0xE000:
            low = units[index + 1] if index + 1 < len(units) else 0
            if unit < 0xDC00 <= low < 0xE000:
                units[index], units[index + 1] = 0x10000 + ((unit & 0x3FF) << 10 | low & 0x3FF), 0
            else:
                units[index] = 0xFFFD
        elif unit > 0x10FFFF:
            units[index] = 0xFFFD
    return units


class Characters:
    """Looks at single characters of a page; its buffers are used again for each."""

    def __init__(self, textpage: Any, shown: View) -> None:
        from pypdfium2 import raw

        self.raw, self.textpage, self.shown = raw, textpage, shown
        self.units = code_units(textpage)
        self._rectangle = raw.FS_RECTF()
        self._matrix = raw.FS_MATRIX()
        self._name, self._flags = ctypes.create_string_buffer(80), ctypes.c_int()
        self._x, self._y = ctypes.c_double(), ctypes.c_double()

    def box(self, index: int) -> tuple[float, ...]:
        """(left, top, right, bottom) of a character as shown, as high as its font."""
        found = self._rectangle
        if not self.raw.FPDFText_GetLooseCharBox(self.textpage, index, found):
            return 0.0, 0.0, 0.0, 0.0
        box = self.shown.box(found.left, found.bottom, found.right, found.top)
        return box if math.isfinite(sum(box)) else (0.0, 0.0, 0.0, 0.0)

    def font(self, index: int) -> tuple[bool, bool]:
        """Whether a character is bold, and whether its font is monospaced."""
        self.raw.FPDFText_GetFontInfo(self.textpage, index, self._name, 80, self._flags)
        return _font(self._name.value, self._flags.value)

    def size_and_turn(self, index: int) -> tuple[float, int]:
        """The font size as shown, points, and the quarter turns, clockwise, that text runs at."""
        matrix = self._matrix
        if not self.raw.FPDFText_GetMatrix(self.textpage, index, matrix):
            return 0.0, 0
        a, b, c, d = self.shown.matrix[:4]
        across, down = a * matrix.a + c * matrix.b, b * matrix.a + d * matrix.b
        size = self.raw.FPDFText_GetFontSize(self.textpage, index)
        size *= math.hypot(matrix.c, matrix.d)
        turn = round(math.atan2(down, across) / (math.pi / 2)) % 4 if across or down else 0
        return size if 0 < size < 10_000 else 0.0, turn

    def origin(self, index: int) -> tuple[float, float]:
        """Where a character stands on its base line, as shown."""
        self.raw.FPDFText_GetCharOrigin(self.textpage, index, self._x, self._y)
        x, y = self.shown.box(self._x.value, self._y.value, self._x.value, self._y.value)[:2]
        return (x, y) if math.isfinite(x + y) else (0.0, 0.0)

    def gaps(self, start: int, end: int) -> list[float]:
        """The space after each character but the last, points of the page itself, along x."""
        get, textpage, found = self.raw.FPDFText_GetLooseCharBox, self.textpage, self._rectangle
        gaps, right = [], None
        for index in range(start, end):
            get(textpage, index, found)
            if right is not None:
                gaps.append(found.left - right)
            right = found.right
        return gaps


@functools.lru_cache(maxsize=1024)
def _font(name: bytes, flags: int) -> tuple[bool, bool]:
    text = name.decode("latin-1")
    return bool(_BOLD.search(text)), bool(flags & _FIXED_PITCH or _MONOSPACED.search(text))


def segments(textpage: Any, shown: View) -> list[Segment]:
    """The segments of a page in the file's order, upright: most words run from left to right."""
    words = list(_words(Characters(textpage, shown)))
    turns: Counter[int] = Counter()
    for turn, word in words:
        turns[turn] += len(word.text)
    upright = turns.most_common(1)[0][0] if turns else 0
    found: list[Segment] = []
    for turn, word in words:
        placed = _turned(word, upright, shown) if upright else word
        if turn != upright:
            placed = replace(placed, sideways=True)
        if found and (joined := _joined(found[-1], placed)) is not None:
            found[-1] = joined
        else:
            found.append(placed)
    return found


def _words(characters: Characters) -> Iterator[tuple[int, Segment]]:
    """Each word with the quarter turns, clockwise, that it runs at."""
    units = characters.units
    start = None
    for index, unit in enumerate([*units, 32]):
        if start is None:
            start = None if unit in _BLANKS or unit == 0 else index
        if start is not None and (unit in _BLANKS or unit in _HYPHENS):
            for begin, end in _spaced(characters, start, index):
                text = "".join(map(chr, filter(None, units[begin:end])))
                if unit in _HYPHENS and end == index:
                    text += "-"
                if text:
                    yield _word(characters, text, begin, max(end, begin + 1))
            start = None


def _spaced(characters: Characters, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A word's parts where pdfium overlooked a narrow space; spaced-out words stay whole."""
    wide = []
    if end - start > 3:
        gaps = characters.gaps(start, end)
        if max(gaps) > 1:
            least = _SPACE * characters.size_and_turn(start)[0]
            wide = [start + place + 1 for place, gap in enumerate(gaps) if gap > least > 0]
            wide = wide if 3 * len(wide) <= len(gaps) else []
    yield from pairwise([start, *wide, end])


def _word(characters: Characters, text: str, start: int, end: int) -> tuple[int, Segment]:
    one, other = characters.box(start), characters.box(end - 1)
    left, top = min(one[0], other[0]), min(one[1], other[1])
    right, bottom = max(one[2], other[2]), max(one[3], other[3])
    size, turn = characters.size_and_turn(start)
    # A superscript in the word, or a character of another font, makes its line no higher.
    if turn % 2 == 0 and bottom - top > 1.2 * (one[3] - one[1]) > 0:
        top, bottom = one[1], one[3]
    elif turn % 2 and right - left > 1.2 * (one[2] - one[0]) > 0:
        left, right = one[0], one[2]
    bold, mono = characters.font(start)
    word = Segment(
        text=text,
        left=left,
        top=top,
        right=right,
        bottom=bottom,
        base=characters.origin(start)[1] if turn == 0 else bottom,
        first=right - left,
        size=size or max(bottom - top, 1.0),
        bold=bold,
        mono=mono,
        start=start,
        end=end,
    )
    return turn, word


def _turned(word: Segment, turn: int, shown: View) -> Segment:
    """The word on a page that is turned back by `turn` quarters."""
    left, top, right, bottom = word.left, word.top, word.right, word.bottom
    across, down = shown.width, shown.height
    if turn == 1:
        left, top, right, bottom = top, across - right, bottom, across - left
    elif turn == 2:
        left, top, right, bottom = across - right, down - bottom, across - left, down - top
    elif turn == 3:
        left, top, right, bottom = down - bottom, left, down - top, right
    width = right - left
    return replace(word, left=left, top=top, right=right, bottom=bottom, base=bottom, first=width)


def overlap(one: Segment, other: Segment) -> float:
    """How much of the lower one's height two segments share, 0…1."""
    shared = min(one.bottom, other.bottom) - max(one.top, other.top)
    height = min(one.bottom - one.top, other.bottom - other.top)
    return max(shared, 0.0) / height if height > 0 else 0.0


def _joined(one: Segment, word: Segment) -> Segment | None:
    """`one` with `word` after it, if they stand together; it may come from the right."""
    if one.sideways or word.sideways:
        if not (one.sideways and word.sideways):
            return None
    else:
        gap = max(word.left - one.right, one.left - word.right)
        if overlap(one, word) < 0.4 or gap > _WORD_GAP * max(one.size, word.size):
            return None
    tall = word if word.size > 1.2 * one.size and not one.sideways else one
    return Segment(
        text=f"{one.text} {word.text}",
        left=min(one.left, word.left),
        top=tall.top,
        right=max(one.right, word.right),
        bottom=tall.bottom,
        base=tall.base,
        first=one.first,
        size=tall.size if len(word.text) > 2 else one.size,
        bold=one.bold and word.bold,
        mono=one.mono and word.mono,
        start=one.start,
        end=word.end,
        sideways=one.sideways,
    )
