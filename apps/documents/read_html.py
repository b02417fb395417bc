"""HTML: what a reader sees, headings kept, scripts and styles left out."""

import codecs
import re
from html.parser import HTMLParser

from .headings import split_number
from .pages import Heading, Page
from .paragraphs import clean
from .read_text import tidy

_HIDDEN = {"script", "style", "template", "noscript", "svg", "iframe", "object", "select"}
# fmt: off
_BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details",
    "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2",
    "h3", "h4", "h5", "h6", "header", "hr", "html", "legend", "main", "menu", "nav", "ol", "p",
    "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "ul", "title",
}
# fmt: on
_ROWS = {"li", "tr", "dt"}  # begin a line
_CELL = "\x1f"  # parts the cells of a table's row until they are joined
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_MARKED = re.compile(r"<!\[(?!CDATA\[)[^>]*>?")  # conditional comments; the parser refuses others
_META = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([-\w:.]+)", re.IGNORECASE)
_DECLARATION = re.compile(rb"<\?xml[^>]+encoding\s*=\s*[\"']([-\w:.]+)", re.IGNORECASE)


def declared_encoding(data: bytes) -> str | None:
    """The encoding that a page declares; else UTF-8, or windows-1252 as browsers take it."""
    found = _DECLARATION.search(data[:1024]) or _META.search(data[:4096])
    if found:
        try:
            name = codecs.lookup(found[1].decode("ascii")).name
            data[:64].decode(name, "ignore")
        except (LookupError, UnicodeError):
            name = ""  # unknown, or no encoding of text
        if name in ("iso8859-1", "ascii"):
            return "cp1252"  # what browsers take these names for
        if name and not name.startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
            return name
    try:
        data.decode()
    except UnicodeDecodeError:
        return "latin-1" if b"\x81" in data else "cp1252"
    return None


def read_html(text: str) -> tuple[str, list[Page]]:
    """The page's title, else its first heading, and the one page."""
    reader = _Reader()
    reader.feed(_MARKED.sub("", text))
    reader.close()
    body, headings = reader.result()
    title = reader.title or next((heading.title for heading in headings), "")
    return title, [Page(1, "1", body, tuple(headings), "text" if body else "none")]


class _Reader(HTMLParser):
    """Gathers paragraphs; a heading is a paragraph with its level."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._paragraphs: list[tuple[int, str]] = []  # heading level or 0, text
        self._text: list[str] = []
        self._level = 0
        self._hidden: list[str] = []
        self._preformatted = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag == "body":
            self._hidden.clear()  # something in the head was left open
        if tag in _BLOCKS:
            self._end_paragraph()
        if tag in _HEADINGS:
            self._level = _HEADINGS[tag]
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag == "br" or tag in _ROWS:
            self._text.append("\n")
        elif tag in ("td", "th"):
            self._text.append(_CELL)
        if tag == "li":
            self._text.append("• ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _HIDDEN:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        if tag in _BLOCKS:
            self._end_paragraph()
        if tag in _HEADINGS:
            self._level = 0
        elif tag == "pre":
            self._preformatted = max(self._preformatted - 1, 0)
        elif tag == "title":
            self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._preformatted:
            self._text.append(data)
        else:
            self._text.append(re.sub(r"[ \t\n\r\f\v]+", " ", data))

    def result(self) -> tuple[str, list[Heading]]:
        self._end_paragraph()
        text, headings = "", []
        for level, paragraph in self._paragraphs:
            if text:
                text += "\n\n"
            if level:
                headings.append(Heading(level, *split_number(paragraph), len(text)))
            text += paragraph
        return text, headings

    def _end_paragraph(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if self._in_title:
            self.title = " ".join(clean(text).split())
            self._in_title = False
            return
        if self._preformatted:
            text = tidy("\n".join(clean(line) for line in text.expandtabs().split("\n")))
        else:
            lines = []
            for line in text.split("\n"):
                cells = (" ".join(clean(cell).split()) for cell in line.split(_CELL))
                lines.append("  ".join(filter(None, cells)))
            text = "\n".join(line for line in lines if line and line != "•")
        if text.strip():
            level = self._level
            self._paragraphs.append((level, " ".join(text.split()) if level else text))
