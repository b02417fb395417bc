"""Real manuals, against what pdfium itself and the manuals' own tables of contents say."""

import re
from functools import cache
from pathlib import Path

import pypdfium2
import pytest

from pippin.apps.documents.headings import letters
from pippin.apps.documents.page_image import locate
from pippin.apps.documents.page_labels import printed_labels
from pippin.apps.documents.pages import Document
from pippin.apps.documents.pdf_text import open_pdf, open_text, segments, view
from pippin.apps.documents.read import read_document
from pippin.apps.documents.running_lines import edge_lines
from support.documents import manuals

SLOW = pytest.mark.slow
ALL = ["bash", "bashref", "gnuplot", "liboctave"] + [
    pytest.param(name, marks=SLOW) for name in ("octave", "users", "libpari")
]


@cache
def _document(name: str) -> Document:
    return read_document(manuals()[name], ocr=False)


@pytest.mark.parametrize("name", ["liboctave", pytest.param("octave", marks=SLOW)])
def test_labels_are_those_of_the_file(name: str) -> None:
    path = manuals()[name]
    with pypdfium2.PdfDocument(path) as pdf:
        expected = [pdf.get_page_label(index) for index in range(len(pdf))]
    assert [page.label for page in _document(name).pages] == expected
    assert expected[0] == "T-1"  # so they are more than a count


@pytest.mark.parametrize("name", ["liboctave", pytest.param("octave", marks=SLOW)])
def test_labels_found_in_print_are_those_that_the_file_states(name: str) -> None:
    path = manuals()[name]
    with open_pdf(path) as pdf:
        stated = [pdf.get_page_label(index) for index in range(len(pdf))]
        edges = [edge_lines(_segments(pdf, number)) for number in range(1, len(pdf) + 1)]
    assert printed_labels(edges) == stated


def _segments(pdf: pypdfium2.PdfDocument, number: int) -> list:
    with open_text(pdf, number, "") as (page, textpage):
        return segments(textpage, view(page))


@pytest.mark.parametrize(
    ("name", "edge"), [("bashref", "top"), ("bash", "bottom"), ("gnuplot", "top")]
)
def test_labels_stand_at_the_edge_of_their_pages(name: str, edge: str) -> None:
    """pdfium's text of the strip at the edge, which has nothing to do with our lines."""
    with pypdfium2.PdfDocument(manuals()[name]) as pdf:
        seen = 0
        for index, page in enumerate(_document(name).pages):
            height = pdf[index].get_height()
            bounds = {"bottom": height - 75} if edge == "top" else {"top": 95}
            strip = pdf[index].get_textpage().get_text_bounded(**bounds).split()
            seen += page.label in strip[:1] + strip[-1:]
    assert seen >= 0.97 * len(_document(name).pages)


def test_the_table_of_contents_leads_to_the_sections() -> None:
    """Each "3.2 Title . . . 9" of bashref: such a heading stands on the page labelled 9."""
    pages = _document("bashref").pages
    by_label = {page.label: page for page in pages}
    entries = []
    for page in pages[:8]:
        if page.label in ("i", "ii", "iii", "iv"):
            entries += re.findall(
                r"^(\d+(?:\.\d+)*) (\S.*?)\s?(?:\. ?){3,}(\d+)$", page.text, re.MULTILINE
            )
    assert len(entries) > 120
    missing = []
    for number, title, label in entries:
        headings = by_label[label].headings
        if not any(h.number == number and letters(h.title) == letters(title) for h in headings):
            missing.append((number, title, label))
    assert len(missing) <= 0.02 * len(entries), missing


@pytest.mark.parametrize("name", [each for each in ALL if each != "bash"])
def test_bookmarks_lead_to_headings(name: str) -> None:
    document = _document(name)
    missing, count = [], 0
    with pypdfium2.PdfDocument(manuals()[name]) as pdf:
        for bookmark in pdf.get_toc():
            destination = bookmark.get_dest()
            if destination is None or destination.get_index() is None:
                continue
            count += 1
            page = document.pages[destination.get_index()]
            title = letters(re.sub(r"[$]?\{.*", "", bookmark.get_title()))  # TeX's own commands
            if not any(title in letters(h.number + h.title) for h in page.headings):
                missing.append((page.number, bookmark.get_title()))
    assert count > 20
    assert len(missing) <= 0.05 * count, missing


@pytest.mark.parametrize("name", ALL)
def test_text_is_clean(name: str) -> None:
    pages = _document(name).pages
    text = "\n".join(page.text for page in pages)
    assert not re.search("[\ufb00-\ufb06\u00ad\0\ufffe\x02]", text)
    broken = [found for page in pages for found in re.findall(r"[a-z]-\n[a-z]", page.text)]
    assert len(broken) <= len(pages) / 100
    for running in ("General Commands Manual", "GNU Octave (version", "gnuplot 5.4\n\n"):
        assert text.count(running) <= 3
    for page in pages:
        for heading in page.headings:
            assert 0 <= heading.start < max(len(page.text), 1)


def test_a_listing_of_gnuplot_keeps_its_lines() -> None:
    text = "\n".join(page.text for page in _document("gnuplot").pages)
    assert "\nset style data linespoints\nplot" in text


@pytest.mark.parametrize("name", ["bash", "gnuplot", "bashref"])
def test_sentences_are_found_on_their_pages(name: str) -> None:
    """What pdfium itself reads within the boxes is the sentence."""
    path: Path = manuals()[name]
    checked = 0
    with pypdfium2.PdfDocument(path) as pdf:
        for page in _document(name).pages[20:80:6]:
            sentences = re.findall(r"(?<=[.] )[A-Z][a-z][^.\n]{60,300}\.(?= )", page.text)
            for sentence in sentences[:2]:
                boxes = locate(path, page.number, sentence)
                width, height = pdf[page.number - 1].get_size()
                textpage = pdf[page.number - 1].get_textpage()
                inside = "".join(
                    textpage.get_text_bounded(
                        box.left * width,
                        height - box.bottom * height + 1,
                        box.right * width,
                        height - box.top * height - 1,
                    )
                    for box in boxes
                )
                assert letters(sentence) in letters(inside)
                assert len(letters(inside)) < len(letters(sentence)) + 30
                checked += 1
    assert checked >= 5
