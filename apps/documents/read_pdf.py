"""PDF files through pdfium: labels, reading order, paragraphs, headings."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import ocr as optical
from .headings import Found, is_large, outlined, printed, split_number, with_numbers
from .page_labels import printed_labels
from .pages import Heading, Page
from .paragraphs import Words, clean, compose
from .pdf_layout import Line, reading_order
from .pdf_text import PDFIUM, Segment, open_pdf, open_text, segments, view
from .running_lines import edge_lines, without_running_lines

Progress = Callable[[int, int], None]


def read_pdf(path: Path, *, ocr: bool, progress: Progress | None) -> tuple[str, list[Page]]:
    """The document's title, "" where it states none, and its pages.

    Raises InputError: encrypted, damaged, or no page in it.
    """
    with open_pdf(path) as document:
        with PDFIUM:
            count = len(document)
            title = clean(document.get_metadata_value("Title")).strip()
            stated = [clean(document.get_page_label(index)) for index in range(count)]
            outline = _outline(document)
        parts = []
        for number in range(1, count + 1):
            parts.append(_segments(document, number, path.name))
            if progress is not None:
                progress(number, count)
    labels = _labels(stated, parts)
    body = _body_size(parts)
    lines = [reading_order(page) for page in without_running_lines(parts, labels, body)]
    pages = _pages(lines, labels, body, outline)
    return title, optical.fill(path, pages, progress) if ocr else pages


def _segments(document: Any, number: int, name: str) -> list[Segment]:
    with open_text(document, number, name) as (page, textpage):
        return segments(textpage, view(page))


def _outline(document: Any) -> dict[int, list[tuple[int, str]]]:
    """(level from 1, title) of the bookmarks that lead to each page, from 1."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for bookmark in document.get_toc():
        destination = bookmark.get_dest()
        index = None if destination is None else destination.get_index()
        if index is not None and index >= 0:
            found[index + 1].append((bookmark.level + 1, bookmark.get_title()))
    return found


def _labels(stated: Sequence[str], parts: Sequence[list[Segment]]) -> list[str]:
    """The file's own labels unless they only count; else what is printed; else the count."""
    counted = [str(number) for number in range(1, len(stated) + 1)]
    if any(stated) and list(stated) != counted:
        return [label or number for label, number in zip(stated, counted, strict=True)]
    return printed_labels([edge_lines(page) for page in parts]) or counted


def _body_size(parts: Sequence[list[Segment]]) -> float:
    sizes: Counter[float] = Counter()
    for page in parts:
        for part in page:
            sizes[round(part.size, 1)] += len(part.text)
    return sizes.most_common(1)[0][0] if sizes else 10.0


def _pages(
    lines: Sequence[list[Line]],
    labels: Sequence[str],
    body: float,
    outline: dict[int, list[tuple[int, str]]],
) -> list[Page]:
    words = Words(line.text for page in lines for line in page)
    large = Counter(round(line.size) for page in lines for line in page if is_large(line, body))
    sizes = sorted((size for size, count in large.items() if count > 1), reverse=True)
    pages = []
    for number, (page, label) in enumerate(zip(lines, labels, strict=True), 1):
        entries = outline.get(number, [])
        found = outlined(page, entries)
        taken = {place for each in found for place in range(each.first, each.last + 1)}
        found += printed(page, body, sizes, taken)
        found = with_numbers(sorted(found, key=lambda each: each.first))
        text, starts = compose(page, _marks(found, len(page)), words)
        headings = [
            Heading(each.level, each.number, each.title, starts[each.first]) for each in found
        ]
        headings = _elsewhere(entries, found) + headings
        pages.append(Page(number, label, text, tuple(headings), "text" if text else "none"))
    return pages


def _marks(found: Sequence[Found], count: int) -> list[int]:
    marks = [0] * count
    for mark, each in enumerate(found, 1):
        if not each.run_in:
            marks[each.first : each.last + 1] = [mark] * (each.last - each.first + 1)
    return marks


def _elsewhere(entries: Sequence[tuple[int, str]], found: Sequence[Found]) -> list[Heading]:
    """Bookmarks of a page on which no heading was found: they begin with the page."""
    if found:
        return []
    return [Heading(level, *split_number(clean(title)), 0) for level, title in entries]
