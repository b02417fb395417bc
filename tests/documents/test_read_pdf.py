"""PDFs made for the purpose: labels, running lines, columns, words, and what cannot be read."""

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fpdf import FPDF
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.documents import ocr, pdf_layout, pdf_text, read
from pippin.apps.documents.pages import Document
from pippin.apps.documents.read import pages_without_text, read_document
from pippin.runtime.errors import InputError
from support.documents import small_pdf

PROSE = (
    "The ferry leaves the harbour at seven and crosses the strait in two hours when the weather "
    "is calm. Passengers wait in the hall beside the pier, where the timetable hangs behind glass. "
    "In winter the crossing takes longer, and the last boat returns before dusk. "
)


def _read(folder: Path, data: bytes, **options) -> Document:
    path = folder / "made.pdf"
    path.write_bytes(data)
    return read_document(path, **options)


def _texts(folder: Path, *pages: list[tuple[float, float, str]]) -> list[str]:
    return [page.text for page in _read(folder, small_pdf(pages)).pages]


class _Book(FPDF):
    """Front matter in roman numbers, chapters in arabic ones; a title page without."""

    numbers: tuple[str, ...] = ()
    head = ""

    def header(self) -> None:
        if self.head:
            self.set_y(10)
            self.cell(0, 5, self.head)
            self.set_y(30)

    def footer(self) -> None:
        number = self.numbers[self.page_no() - 1] if self.numbers else ""
        if number:
            self.set_y(-15)
            self.cell(0, 5, number, align="C")


def _book(count: int) -> _Book:
    book = _Book()
    book.set_font("Helvetica", size=11)
    return book


def test_labels_that_the_file_states(tmp_path: Path) -> None:
    book = _book(6)
    for page in range(6):
        book.add_page()
        if page == 0:
            book.set_page_label(label_style="r", label_start=1)
        elif page == 2:
            book.set_page_label(label_style="D", label_prefix="", label_start=1)
        book.multi_cell(0, 5, f"Body number {page} of this. {PROSE}")
    document = _read(tmp_path, bytes(book.output()))
    assert [page.label for page in document.pages] == ["i", "ii", "1", "2", "3", "4"]
    assert [page.number for page in document.pages] == [1, 2, 3, 4, 5, 6]


def test_labels_and_running_lines_that_are_only_printed(tmp_path: Path) -> None:
    book = _book(9)
    book.numbers = ("", "i", "ii", "iii", "", "1", "2", "", "4", "5")
    book.head = "The Harbour Guide"
    for page in range(10):
        book.add_page()
        book.multi_cell(0, 5, f"{PROSE} Body {page + 40}.")
    pages = _read(tmp_path, bytes(book.output())).pages
    expected = ["T-1", "i", "ii", "iii", "iv", "1", "2", "3", "4", "5"]
    assert [page.label for page in pages] == expected
    for page in pages:
        assert page.text == f"{PROSE} Body {page.number + 39}.".replace("  ", " ")


def test_numbers_that_do_not_rise_with_the_pages_are_no_labels(tmp_path: Path) -> None:
    pages = [[(50, 50, f"{number} ships came"), (50, 500, "end")] for number in (7, 3, 9, 1, 4)]
    document = _read(tmp_path, small_pdf(pages))
    assert [page.label for page in document.pages] == ["1", "2", "3", "4", "5"]
    assert document.pages[2].text.startswith("9 ships came")


def test_what_repeats_in_the_body_stays(tmp_path: Path) -> None:
    """A table's head on each page stands close to its rows; identical pages are no headers."""
    table = [
        [(50, 50, "Name of the ship"), (50, 62, f"Row {number} begins"), (50, 74, "more")]
        for number in range(5)
    ]
    assert all(text.startswith("Name of the ship") for text in _texts(tmp_path, *table))
    assert _texts(tmp_path, *([[(50, 300, "Nothing else")]] * 4)) == ["Nothing else"] * 4


def test_words_broken_at_a_line_end(tmp_path: Path) -> None:
    lines = [
        "A well-known harbour has a light-",
        "house, which is a well-",
        "known sight. The Jean-",
        "Marie left with the afternoon tide, an exam-",
        "ple of a soft\u00adly ended sen\u00ad",
        "tence that goes on to the margin as others do",
    ]
    (text,) = _texts(tmp_path, [(40, 50 + 12 * row, line) for row, line in enumerate(lines)])
    text = " ".join(text.split())
    assert "a lighthouse, which" in text
    assert "a well-known sight" in text
    assert "Jean-Marie" in text
    assert "an example of a softly ended sentence that" in text


def test_ligatures_and_what_must_not_change(tmp_path: Path) -> None:
    (text,) = _texts(tmp_path, [(40, 50, "ﬁnd ﬂag oﬀer eﬃcient waﬄe x² ½ ℝ Ⅳ a\u00a0b")])
    assert text == "find flag offer efficient waffle x² ½ ℝ Ⅳ a b"


def test_two_columns_written_across_are_read_one_after_the_other(tmp_path: Path) -> None:
    left = [f"left {row} says what the harbour" for row in range(8)]
    right = [f"right {row} tells of the old pier" for row in range(8)]
    page = [(100.0, 40.0, "A title across both of the columns here")]
    for row in range(8):
        page += [(40, 80 + 12 * row, left[row]), (220, 80 + 12 * row, right[row])]
    page.append((100.0, 220.0, "A picture's caption across both columns"))
    for row in range(8):
        page += [(40, 260 + 12 * row, f"lower {left[row][:-4]}"), (220, 260 + 12 * row, "x" * 32)]
    (text,) = _texts(tmp_path, page)
    places = [text.index(part) for part in ("A title", "left 0", "left 7", "right 0", "right 7")]
    places += [text.index(part) for part in ("A picture", "lower left 0", "lower left 7", "xxx")]
    assert places == sorted(places)


def test_a_table_is_read_row_by_row(tmp_path: Path) -> None:
    rows = [(50.0, 60 + 12.0 * row, f"ship {row}") for row in range(12)]
    rows += [(250.0, 60 + 12.0 * row, f"{row * 7} tons") for row in range(12)]
    (text,) = _texts(tmp_path, rows)
    assert text.split("\n") == [f"ship {row}  {row * 7} tons" for row in range(12)]


def test_paragraphs_and_a_listing(tmp_path: Path) -> None:
    book = _book(1)
    book.add_page()
    book.multi_cell(0, 5, PROSE.strip())
    book.ln(8)
    book.set_font("Courier", size=10)
    for line in ("def depart(ship):", "    if ship.ready:     # now", "        return True"):
        book.cell(0, 5, line, new_x="LMARGIN", new_y="NEXT")
    book.ln(8)
    book.set_font("Helvetica", size=11)
    book.multi_cell(0, 5, "After the listing the text goes on.")
    text = _read(tmp_path, bytes(book.output())).pages[0].text
    assert text.split("\n\n") == [
        PROSE.strip(),
        "def depart(ship):\n    if ship.ready:     # now\n        return True",
        "After the listing the text goes on.",
    ]


def test_items_of_a_list(tmp_path: Path) -> None:
    """TeX's bullets have no character."""
    words = "speaks of ropes and of the anchors that the crew has"
    lines = [
        (50, f"\x88  Item one {words}"),
        (65, "as it goes on"),
        (50, f"\x88  Item two {words}"),
        (65, "as it goes on"),
    ]
    (text,) = _texts(tmp_path, [(x, 50 + 12.0 * row, line) for row, (x, line) in enumerate(lines)])
    items = [line.split() for line in text.split("\n") if line]
    assert items == [f"• Item {number} {words} as it goes on".split() for number in ("one", "two")]


def test_a_sentence_that_goes_on_with_a_letter_is_no_item(tmp_path: Path) -> None:
    words = "of ropes and of the anchors that the crew has"
    lines = [
        f"A ship has precision {words}",
        f"all the same {words} and also",
        f"d. If not {words}",
    ]
    (text,) = _texts(tmp_path, [(50, 50 + 12.0 * row, line) for row, line in enumerate(lines)])
    assert text == " ".join(lines)
    lines[1] += ":"
    (text,) = _texts(tmp_path, [(50, 50 + 12.0 * row, line) for row, line in enumerate(lines)])
    assert text == f"{lines[0]} {lines[1]}\n{lines[2]}"


def test_a_paragraph_that_begins_small_after_a_wider_gap(tmp_path: Path) -> None:
    lines = [
        (50, "The ferry leaves the harbour at seven, and it crosses"),
        (62, "the strait in two hours when the weather there is dry."),
        (77, "squeeze (x) takes out what is thin of all of the ships"),
        (89, "that there are."),
    ]
    (text,) = _texts(tmp_path, [(50.0, float(y), line) for y, line in lines])
    assert text.split("\n\n") == [f"{lines[at][1]} {lines[at + 1][1]}" for at in (0, 2)]


def test_a_chapter_s_number_above_its_title(tmp_path: Path) -> None:
    book = _book(1)
    book.add_page()
    for text in ("Chapter 3:", "Of Storms"):
        book.set_font("Helvetica", style="B", size=16)
        book.cell(0, 10, text, new_x="LMARGIN", new_y="NEXT")
        book.ln(12)
    book.set_font("Helvetica", size=11)
    book.multi_cell(0, 5, PROSE)
    (page,) = _read(tmp_path, bytes(book.output())).pages
    assert [(each.number, each.title) for each in page.headings] == [("3", "Of Storms")]
    assert page.text.startswith("Chapter 3: Of Storms\n\n")


def test_headings_from_bookmarks_and_from_their_size(tmp_path: Path) -> None:
    book = _book(2)
    for number, (title, marked) in enumerate([("3.2 Of Tides", True), ("4 Of Storms", False)]):
        book.add_page()
        book.multi_cell(0, 5, f"{number} {PROSE}")
        if marked:
            book.start_section(title)
        book.ln(8)
        book.set_font("Helvetica", style="B", size=16)
        book.cell(0, 10, title, new_x="LMARGIN", new_y="NEXT")
        book.set_font("Helvetica", size=11)
        book.ln(4)
        book.multi_cell(0, 5, PROSE)
    first, second = _read(tmp_path, bytes(book.output())).pages
    for page, number, title in ((first, "3.2", "Of Tides"), (second, "4", "Of Storms")):
        (heading,) = page.headings
        assert (heading.number, heading.title) == (number, title)
        assert page.text[heading.start :].startswith(f"{number} {title}\n\n")


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_a_turned_page_reads_the_same(tmp_path: Path, rotate: int) -> None:
    lines = ["The first of the lines runs to the end", "and goes on here", "then stops"]
    page = [(40, 50 + 12 * row, line) for row, line in enumerate(lines)]
    (read_page,) = _read(tmp_path, small_pdf([page], rotate)).pages
    assert read_page.text.replace("\n", " ") == " ".join(lines)


def test_words_with_an_accent_set_before_the_letter(tmp_path: Path) -> None:
    (text,) = _texts(tmp_path, [(40, 50, "th´eorie, Br¨oker, Mikul´ık, f´(x)")])
    assert text == "théorie, Bröker, Mikulík, f´(x)"


# What cannot be read


def _refused(path: Path, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        read_document(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_password(tmp_path: Path) -> None:
    book = _book(1)
    book.add_page()
    book.cell(0, 5, "secret words")
    book.set_encryption(owner_password="owner", user_password="user")
    (tmp_path / "a.pdf").write_bytes(bytes(book.output()))
    _refused(tmp_path / "a.pdf", "a.pdf is encrypted", "password", "qpdf --decrypt")


def test_an_owner_password_alone_hinders_nobody(tmp_path: Path) -> None:
    book = _book(1)
    book.add_page()
    book.cell(0, 5, "open words")
    book.set_encryption(owner_password="owner")
    assert _read(tmp_path, bytes(book.output())).pages[0].text == "open words"


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        pytest.param(b"", ("is empty",), id="empty"),
        pytest.param(b"no document at all", ("is no PDF",), id="text"),
        pytest.param(b"%PDF-1.7\nrubbish", ("is damaged",), id="damaged"),
        pytest.param(small_pdf([]), ("damaged or has no pages",), id="no-pages"),
    ],
)
def test_what_is_no_readable_pdf(tmp_path: Path, data: bytes, parts: tuple[str, ...]) -> None:
    (tmp_path / "a.pdf").write_bytes(data)
    _refused(tmp_path / "a.pdf", "a.pdf", *parts)


def test_a_page_with_too_many_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_text, "_MOST_CHARACTERS", 10)
    (tmp_path / "a.pdf").write_bytes(small_pdf([[(50, 50, "ten chars.")], [(50, 50, "x" * 11)]]))
    _refused(tmp_path / "a.pdf", "page 2 of a.pdf has 11 characters, at most 10 are read")


def test_many_words_in_one_line_take_time_by_their_number() -> None:
    """20,000: a second where each was compared with all before it: minutes."""
    word = pdf_text.Segment("w", 0, 0, 5, 10, 8, 5, 10, False, False, 0, 1)
    words = [replace(word, left=40.0 * n, right=40.0 * n + 5) for n in range(20_000)]
    start = time.process_time()
    assert pdf_layout.rows(words[::-1]) == [words]
    assert time.process_time() - start < 5


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refused(tmp_path / "none.pdf", "there is no file")
    _refused(tmp_path, "is a directory")
    _refused(tmp_path / "a\0.pdf", "cannot be read")
    (tmp_path / "a.pdf").write_bytes(small_pdf([[(50, 50, "x")]]))
    monkeypatch.setattr(read, "MAX_BYTES", 100)
    _refused(tmp_path / "a.pdf", "at most 100 are read")


def test_a_page_that_is_damaged_is_named(tmp_path: Path) -> None:
    data = small_pdf([[(50, 50, "one")], [(50, 50, "two")]])
    (tmp_path / "a.pdf").write_bytes(data.replace(b"8 0 obj\n<< /Type /Page", b"8 0 obj\n[] /Type"))
    _refused(tmp_path / "a.pdf", "page 2 of a.pdf is damaged")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "a.pdf"


_WHOLE = small_pdf([[(50, 50, "some words"), (50, 62, "and more")], [(50, 50, "the end")]])


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(_WHOLE)))
def test_a_file_cut_short(scratch: Path, cut: int) -> None:
    _document_or_refusal(scratch, _WHOLE[:cut])


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, len(_WHOLE) - 1), junk=st.binary(min_size=1, max_size=12))
def test_a_file_with_junk_in_it(scratch: Path, place: int, junk: bytes) -> None:
    _document_or_refusal(scratch, _WHOLE[:place] + junk + _WHOLE[place + len(junk) :])


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(max_size=300))
def test_junk_that_calls_itself_a_pdf(scratch: Path, junk: bytes) -> None:
    _document_or_refusal(scratch, b"%PDF-1.4\n" + junk)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text(st.characters(), max_size=20), max_size=6))
def test_any_characters(scratch: Path, lines: list[str]) -> None:
    page = [(20, 40 + 14 * row, line) for row, line in enumerate(lines)]
    _document_or_refusal(scratch, small_pdf([page]))


def _document_or_refusal(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(InputError):
        for page in read_document(path, ocr=False).pages:
            page.text.encode()  # no lone surrogate
            assert not re.search("[\0\u00ad\ufffe]", page.text)
            assert page.source == ("text" if page.text else "none")


# Pages without text


def _pictures(folder: Path) -> Path:
    path = folder / "pictures.pdf"
    path.write_bytes(small_pdf([[(50, 50, "words")], [], []]))
    return path


def _tesseract(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    programs = folder / "programs"
    programs.mkdir()
    (programs / "tesseract").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "tesseract").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


def test_a_page_without_text_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    document = read_document(_pictures(tmp_path))
    assert [page.source for page in document.pages] == ["text", "none", "none"]
    said = pages_without_text(document)
    assert "2 pages (2, 3) have no text" in said
    assert "install tesseract" in said


def test_tesseract_reads_the_pages_without_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up tesseract that says which kind of file it was given."""
    script = "printf 'It got a '; head -c 4 | tail -c 3; printf ' pic-\\nture\\n\\nthe end\\n\\f'"
    _tesseract(tmp_path, monkeypatch, script)
    path = _pictures(tmp_path)
    document = read_document(path)
    assert [page.source for page in document.pages] == ["text", "ocr", "ocr"]
    assert document.pages[1].text == "It got a PNG picture\n\nthe end"
    assert pages_without_text(document) == ""
    assert [page.source for page in read_document(path, ocr=False).pages] == [
        "text",
        "none",
        "none",
    ]


@pytest.mark.parametrize("script", ["exit 1", "sleep 30", "cat >/dev/null"])
def test_a_tesseract_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(ocr, "_SECONDS", 0.2)
    _tesseract(tmp_path, monkeypatch, script)
    document = read_document(_pictures(tmp_path))
    assert [page.source for page in document.pages] == ["text", "none", "none"]
    assert "tesseract found none" in pages_without_text(document)


@pytest.mark.skipif(not ocr.available(), reason="tesseract is not installed")
def test_the_real_tesseract(tmp_path: Path) -> None:
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("L", (1240, 400), 255)
    font = ImageFont.load_default(60)
    ImageDraw.Draw(picture).text((80, 150), "The ferry leaves at seven", 0, font)
    book = _book(1)
    book.add_page()
    book.image(picture, w=180)
    (page,) = _read(tmp_path, bytes(book.output())).pages
    assert page.source == "ocr"
    assert "ferry leaves at seven" in page.text


def test_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    data = small_pdf([[(50, 50, "a")]] * 3)
    _read(tmp_path, data, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
