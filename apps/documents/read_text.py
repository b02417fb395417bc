"""Plain text: form feeds part its pages."""

import re

from .headings import split_number
from .pages import Heading, Page

# A numbered line by itself, as RFCs and manuals in plain text have them.
_NUMBERED = re.compile(
    r"(?:^|\n\n)[ ]{0,3}((?:\d{1,3}\.)+\d{0,3}[ ]{1,4}[^\W\d_][^\n]{1,78})(?=\n\n|$)"
)


def read_text(text: str) -> tuple[str, list[Page]]:
    """No title, and the pages of a text."""
    parts = text.split("\f")
    while len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    pages = []
    for number, part in enumerate(parts, 1):
        page = tidy(part)
        headings = []
        for found in _NUMBERED.finditer(page):
            count, title = split_number(found[1])
            if count:
                headings.append(Heading(count.count(".") + 1, count, title, found.start(1)))
        source = "text" if page else "none"
        pages.append(Page(number, str(number), page, tuple(headings), source))
    return "", pages


def tidy(text: str) -> str:
    """No spaces at the ends of lines, no more than one empty line in a row, none at the ends."""
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")
