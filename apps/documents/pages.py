"""A document as pages of text, each under the number that it has and the one printed on it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Heading:
    """A heading on a page."""

    level: int  # from 1
    number: str  # "3.2", as printed or counted; "" where there is none
    title: str
    start: int  # where it begins in the page's text, in characters


@dataclass(frozen=True)
class Page:
    """One page; of a file without pages, the whole text is page 1."""

    number: int  # physical, from 1
    label: str  # as printed, "xii" or "47"; the physical number where the file states none
    text: str  # cleaned: paragraphs parted by an empty line, words whole, no running headers
    headings: tuple[Heading, ...]
    source: str  # "text", "ocr", or "none" where no text was found


@dataclass(frozen=True)
class Document:
    """A file that was read."""

    path: Path
    sha256: str  # of the file's bytes
    title: str
    pages: tuple[Page, ...]


@dataclass(frozen=True)
class Box:
    """A rectangle on a page, in fractions of its width and height, from the top left corner."""

    left: float
    top: float
    right: float
    bottom: float
