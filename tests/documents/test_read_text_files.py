"""Text, Markdown and HTML."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pippin.apps.documents import read
from pippin.apps.documents.pages import Document
from pippin.apps.documents.read import read_document
from pippin.runtime.errors import InputError


def _read(folder: Path, name: str, data: bytes | str) -> Document:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_document(path)


def _headings(document: Document) -> list[tuple[int, str, str]]:
    """(level, number, title); each begins at its place in the text."""
    found = []
    for page in document.pages:
        for heading in page.headings:
            begin = page.text[heading.start :].lstrip("# ")
            assert begin.startswith(heading.number or heading.title)
            found.append((heading.level, heading.number, heading.title))
    return found


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_encodings_of_text(tmp_path: Path, encoding: str) -> None:
    text = "Größe, размер, 大きさ"
    bom = "\ufeff" if encoding.endswith(("le", "be")) else ""
    document = _read(tmp_path, "a.txt", (bom + text).encode(encoding))
    assert [page.text for page in document.pages] == [text]
    assert document.title == "a"


def test_form_feeds_part_pages_and_numbered_lines_are_headings(tmp_path: Path) -> None:
    text = "1. Intro\r\n\r\nfoo  \r\n\r\n\r\n\r\nbar\f  2.1  Next thing\n\n3.5 litres\nremain\n\f\n"
    document = _read(tmp_path, "a.txt", text)
    assert [(page.number, page.label) for page in document.pages] == [(1, "1"), (2, "2")]
    assert document.pages[0].text == "1. Intro\n\nfoo\n\nbar"
    assert _headings(document) == [(1, "1", "Intro"), (2, "2.1", "Next thing")]


def test_an_empty_page_between_form_feeds_keeps_its_number(tmp_path: Path) -> None:
    pages = _read(tmp_path, "a.txt", "one\f\fthree").pages
    assert [(page.number, page.text, page.source) for page in pages] == [
        (1, "one", "text"),
        (2, "", "none"),
        (3, "three", "text"),
    ]


def test_markdown(tmp_path: Path) -> None:
    text = "# The *whole* `story`\n\ntext\n\n```\n# no heading\n```\n\n2.1 Sub\n---\n\npara\n"
    document = _read(tmp_path, "a.md", text)
    assert document.title == "The whole story"
    assert [heading.title for heading in document.pages[0].headings] == ["The whole story", "Sub"]
    assert document.pages[0].headings[1].number == "2.1"
    assert document.pages[0].text[document.pages[0].headings[1].start :].startswith("2.1 Sub")


def test_html(tmp_path: Path) -> None:
    text = """<!doctype html><html><head><title>Ferries &amp; more</title><style>p {}</style>
        <script>if (a < b) document.write("<p>no</p>")</script></head><body>
        <h1>3.2 The <i>big</i> ferry</h1><p>It leaves
        at <b>seven</b>.<br>Always &mdash; nearly.<h2>Prices</h2>
        <ul><li>adults<li>children</ul><table><tr><th>Day<th>Price<tr><td>Mo<td>7</table>
        <pre>\n  one\n    two</pre><template>no</template><!-- no --></body></html>"""
    document = _read(tmp_path, "a.html", text)
    assert document.title == "Ferries & more"
    assert document.pages[0].text == (
        "3.2 The big ferry\n\nIt leaves at seven.\nAlways — nearly.\n\nPrices\n\n"
        "• adults\n• children\n\nDay  Price\nMo  7\n\n  one\n    two"
    )
    assert _headings(document) == [(1, "3.2", "The big ferry"), (2, "", "Prices")]


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="koi8-r">', "koi8-r"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=shift_jis">', "shift_jis"),
        ('<?xml version="1.0" encoding="utf-8"?>', "utf-8"),
        ("", "utf-8"),
        ("", "utf-16"),
    ],
)
def test_encodings_of_html(tmp_path: Path, head: str, encoding: str) -> None:
    data = f"{head}<p>Д и Я</p>".encode(encoding)
    assert _read(tmp_path, "a.html", data).pages[0].text == "Д и Я"


@pytest.mark.parametrize("head", ["", '<meta charset="latin1">', '<meta charset="nonsense">'])
def test_html_without_a_usable_encoding_is_read_as_browsers_do(tmp_path: Path, head: str) -> None:
    data = head.encode() + "<p>“caf\xe9”</p>".encode("cp1252")
    assert _read(tmp_path, "a.htm", data).pages[0].text == "“café”"


def test_html_is_known_by_its_beginning_too(tmp_path: Path) -> None:
    assert _read(tmp_path, "page", "<!DOCTYPE html><p>a &lt; b").pages[0].text == "a < b"


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("a.txt", b"", "is empty"),
        ("a.md", b" \n", "is empty"),
        ("a.txt", b"caf\xe9", "no UTF-8 text at byte 3; convert it first"),
        ("a.txt", b"\xff\xfea", "no UTF-16 text"),
        ("a.txt", b"a\0b", "NUL character"),
        ("a.docx", b"PK\x03\x04rest", "an archive or office document"),
        ("a.txt", b"\x89PNG\r\n", "a picture"),
        ("a.txt", b"x" * 201, "at most 200 are read"),
    ],
)
def test_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, part: str
) -> None:
    monkeypatch.setattr(read, "MAX_TEXT_BYTES", 200)
    with pytest.raises(InputError) as caught:
        _read(tmp_path, name, data)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# fmt: off
_PIECES = [
    "<p>", "<pre>", "</pre>", "<h1>", "</h1>", "<h9>", "<script>", "</script>", "<!--", "-->",
    "<![CDATA[", "]]>", "<![if", "<!x", "<?", "<", ">", "&", "&#x110000;", "&#0;", "<svg/>",
    "<title>", "</title>", "<td>", "<li>", "<br/>", "\udc80", "\x85", "a", "1.2", " ",
]
# fmt: on
_MARKUP = st.lists(st.sampled_from(_PIECES) | st.text(max_size=5), max_size=30).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=_MARKUP, suffix=st.sampled_from([".html", ".md", ".txt"]))
def test_any_markup(scratch: Path, text: str, suffix: str) -> None:
    _document_or_refusal(scratch / f"a{suffix}", text.encode("utf-8", "replace"))


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".html", ".md", ".txt", ".pdf", ""]))
def test_any_bytes(scratch: Path, data: bytes, suffix: str) -> None:
    _document_or_refusal(scratch / f"a{suffix}", data)


def _document_or_refusal(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(InputError):
        for page in read_document(path, ocr=False).pages:
            page.text.encode()
            assert all(0 <= heading.start < len(page.text) for heading in page.headings)


@settings(max_examples=60, deadline=None)
@given(text=st.text("# ab1.\n-=`>*", max_size=60))
def test_markdown_headings_begin_where_they_stand(scratch: Path, text: str) -> None:
    """Against the parser's HTML of what stands from each heading on."""
    try:
        (page,) = _read(scratch, "b.md", text).pages
    except InputError:
        return
    for heading in page.headings:
        line = page.text[heading.start :].split("\n")[0]
        assert heading.title.split()[0][:1] in line
        assert page.text[: heading.start].endswith("\n") or heading.start == 0
    html = MarkdownIt("commonmark").render(page.text)
    titled = sum(html.count(f"<h{level}>") - html.count(f"<h{level}></h") for level in range(1, 7))
    assert len(page.headings) == titled
