"""Reading the user's file, whatever kind it is, into pages."""

import codecs
import hashlib
import stat
from collections.abc import Callable
from pathlib import Path

from ...runtime.errors import InputError
from . import ocr as optical
from .pages import Document
from .read_html import read_html
from .read_markdown import read_markdown
from .read_pdf import read_pdf
from .read_text import read_text

READER_VERSION = 2  # rises when a file's text or labels come out otherwise: indexes read it again
MAX_BYTES = 1 << 29  # of a PDF, pictures and all
MAX_TEXT_BYTES = 1 << 25  # of text, Markdown and HTML

_HTML = (".html", ".htm", ".xhtml")
_MARKDOWN = (".md", ".markdown", ".mkd")
_HEAD = 1024  # bytes within which a PDF says that it is one
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_KINDS = {  # how files begin that are none of ours, and what they are
    b"PK\x03\x04": "an archive or office document",
    b"\xd0\xcf\x11\xe0": "an office document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x1f\x8b": "compressed",
    b"%!PS": "PostScript",
    b"{\\rtf": "rich text",
}


def read_document(
    path: Path, *, ocr: bool = True, progress: Callable[[int, int], None] | None = None
) -> Document:
    """The file as pages: a PDF by its content, HTML and Markdown by their names, else text.

    `ocr` has pages without text read by tesseract where it is installed. `progress` is called
    with the pages read and their count, and again with those that tesseract reads. Text is UTF-8,
    or UTF-16 or UTF-32 with a byte order mark; HTML may declare another encoding.
    Raises InputError: missing, no regular file, empty, too large, encrypted, damaged, or no
    document of these kinds.
    """
    path = Path(path).expanduser()
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe may wait for ever
            raise InputError(f"{path} is no regular file; save what it gives as one first")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(_HEAD)
            kind = _kind(path, head, size)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            data = b"" if kind == "pdf" else file.read()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; check its name") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; give the files in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}; check its name and rights") from None
    if kind == "pdf":
        title, pages = read_pdf(path, ocr=ocr, progress=progress)
    else:
        read = {"html": read_html, "markdown": read_markdown, "text": read_text}[kind]
        title, pages = read(_decoded(data, kind, path.name))
        if progress is not None:
            progress(len(pages), len(pages))
    return Document(path, digest, title or path.stem, tuple(pages))


def pages_without_text(document: Document) -> str:
    """What to tell the user of a document's pages without text; "" where all have some."""
    pages = [page.number for page in document.pages if page.source == "none"]
    if not pages:
        return ""
    some = ", ".join(map(str, pages[:8])) + (" …" if len(pages) > 8 else "")
    which = f"page {some} has" if len(pages) == 1 else f"{len(pages)} pages ({some}) have"
    if optical.available():
        return f"{document.path.name}: {which} no text, and tesseract found none"
    return f"{document.path.name}: {which} no text; install tesseract to read pictures of pages"


def _kind(path: Path, head: bytes, size: int) -> str:
    name = path.name
    if not head:
        raise InputError(f"{name} is empty; give a file that says something")
    if b"%PDF-" in head:
        _check_size(name, size, MAX_BYTES)
        return "pdf"
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        raise InputError(f"{name} is no PDF, it does not begin like one; give the PDF itself")
    kind = next((kind for start, kind in _KINDS.items() if head.startswith(start)), None)
    if kind is not None:
        raise InputError(f"{name} is {kind}; PDF, HTML, Markdown and text are read: save it as PDF")
    _check_size(name, size, MAX_TEXT_BYTES)
    if suffix in _HTML or head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    return "markdown" if suffix in _MARKDOWN else "text"


def _check_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise InputError(f"{name} has {size:,} bytes, at most {most:,} are read; split it first")


def _decoded(data: bytes, kind: str, name: str) -> str:
    encoding = next((encoding for bom, encoding in _BOMS if data.startswith(bom)), None)
    if encoding is None and kind == "html":
        from .read_html import declared_encoding

        encoding = declared_encoding(data)
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is no {(encoding or 'UTF-8').upper()} text at byte {error.start:,}; "
            "convert it first, for example with iconv"
        ) from None
    if "\0" in text:
        raise InputError(f"{name} has a NUL character, so it is no text; save it as PDF or text")
    text = text.encode("utf-8", "replace").decode().removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise InputError(f"{name} is empty; give a file that says something")
    return text
