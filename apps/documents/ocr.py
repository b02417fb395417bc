"""Optical recognition of pages without text, by the program tesseract where it is installed."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from .page_image import render_page
from .pages import Page
from .paragraphs import Words, clean

_WIDTH = 2480  # pixels: 300 to the inch on A4, what tesseract is made for
_SECONDS = 120  # a page


def available() -> bool:
    """Whether tesseract is installed."""
    return shutil.which("tesseract") is not None


def fill(
    path: Path, pages: Sequence[Page], progress: Callable[[int, int], None] | None
) -> list[Page]:
    """The pages, those without text read by tesseract; what it finds nothing on stays "none"."""
    filled = list(pages)
    empty = [place for place, page in enumerate(pages) if page.source == "none"]
    if not available():
        return filled
    for done, place in enumerate(empty, 1):
        filled[place] = _read(path, pages[place])
        if progress is not None:
            progress(done, len(empty))
    return filled


def _read(path: Path, page: Page) -> Page:
    command = ["tesseract", "stdin", "stdout"]
    image = render_page(path, page.number, _WIDTH)
    try:
        done = subprocess.run(
            command, input=image, capture_output=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return page  # a page that cannot be recognized is reported like one without tesseract
    text = _paragraphs(done.stdout.decode("utf-8", "replace"))
    return replace(page, text=text, source="ocr") if text else page


def _paragraphs(text: str) -> str:
    """Paragraphs, which tesseract parts by empty lines, with their lines joined."""
    text = text.replace("\r\n", "\n").replace("\f", "\n\n")
    blocks = [
        [clean(line).strip() for line in block.split("\n") if line.strip()]
        for block in re.split(r"\n\s*\n", text)
    ]
    words = Words(line for block in blocks for line in block)
    joined = []
    for lines in filter(None, blocks):
        whole = lines[0]
        full = max(map(len, lines))
        for above, below in pairwise(lines):
            if above.endswith("-"):
                whole = words.joined(whole, below)
            else:
                # A line with room for the next word was ended on purpose.
                room = full - len(above) > len(below.split()[0]) + 0.1 * full
                whole += ("\n" if room else " ") + below
        joined.append(whole)
    return "\n\n".join(joined)
