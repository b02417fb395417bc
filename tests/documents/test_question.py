"""Pages and sections that a question names."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.documents.question import Contents, parse, resolve, roman

_PREFACE = ("i", "ii", "iii")
_BOOK = Contents(
    "book",
    "book.pdf",
    (*_PREFACE, *map(str, range(1, 198)), "A-1", "A-2"),
    (("1", "Start"), ("3", "Shells"), ("3.2", "Commands"), ("3.2.1", "Pipes"), ("b", "Notes")),
)
_PLAIN = Contents("plain", "plain.pdf", tuple(map(str, range(1, 51))), ())

_PAGES = [
    ("Where does attention fail on page 47?", [("47", "47")], ""),
    ("what do pages 12–15 say", [("12", "15")], ""),
    ("pages 12-15", [("12", "15")], ""),
    ("pages 12 to 15", [("12", "15")], ""),
    ("Pages 12 through 15, please", [("12", "15")], ""),
    ("between pages 12 and 15", [("12", "15")], ""),
    ("see p. 12", [("12", "12")], ""),
    ("pp.12–15", [("12", "15")], ""),
    ("pg. 5", [("5", "5")], ""),
    ("What is on page xii?", [("xii", "xii")], ""),
    ("page XII", [("XII", "XII")], ""),
    ("on page 47.", [("47", "47")], ""),
    ("page 47's table", [("47", "47")], ""),
    ("pages 3, 5 and 7-9", [("3", "3"), ("5", "5"), ("7", "9")], ""),
    ("compare page 3 with page 10", [("3", "3"), ("10", "10")], ""),
    ("page number 12", [("12", "12")], ""),
    ("page A-2", [("A-2", "A-2")], ""),
    ("PDF page 47", [("47", "47")], "physical"),
    ("the physical page 47", [("47", "47")], "physical"),
    ("page 47 of the PDF", [("47", "47")], "physical"),
    ("printed page 47", [("47", "47")], "printed"),
    ("What is on page twelve?", [("12", "12")], ""),
    ("page Twenty-one", [("21", "21")], ""),
    ("pages ninety-eight to one", [("98", "1")], ""),
    ("between pages two and five", [("2", "5")], ""),
    ("What does the last page say?", [("-1", "-1")], "physical"),
    ("Summarize the first two pages", [("1", "2")], "physical"),
    ("who signed on the last 3 pages of the document", [("-3", "-1")], "physical"),
]
_SECTIONS = [
    ("What does section 3.2 say?", ["3.2"]),
    ("section 3.2.", ["3.2"]),
    ("§ 3.2", ["3.2"]),
    ("§3.2.1 and its example", ["3.2.1"]),
    ("sections 3.2 and 4", ["3.2", "4"]),
    ("summarise chapter 4", ["4"]),
    ("sec. 2", ["2"]),
    ("Chapter IV", ["IV"]),
    ("Appendix B", ["B"]),
    ("appendix B.2", ["B.2"]),
]
_NEITHER = [
    "How do I print page numbers?",
    "How do I show the first page?",
    "hide the number on the first page",
    "the sixteenth page sixteenth",
    "What is code page 437?",
    "man page 3",
    "the page I wrote",
    "a homepage 7",
    "page 12.5",
    "the section about arrays",
    "in this chapter a shell is",
    "12 pages",
    "",
]


@pytest.mark.parametrize(("question", "ranges", "numbering"), _PAGES, ids=[p[0] for p in _PAGES])
def test_pages_that_are_named(question, ranges, numbering):
    found = parse(question)
    assert (found.kind, list(found.ranges), found.numbering) == ("page", ranges, numbering)


@pytest.mark.parametrize(("question", "numbers"), _SECTIONS, ids=[s[0] for s in _SECTIONS])
def test_sections_that_are_named(question, numbers):
    found = parse(question)
    assert (found.kind, [first for first, _ in found.ranges]) == ("section", numbers)


@pytest.mark.parametrize("question", _NEITHER, ids=[q or "empty" for q in _NEITHER])
def test_questions_that_name_neither(question):
    assert parse(question) is None


def test_the_rest_of_the_question_is_what_is_searched_for():
    assert parse("Where does attention fail on page 47?").rest == "Where does attention fail ?"
    assert parse("What does section 3.2 say of pipes?").rest == "What does say of pipes?"


@settings(deadline=None)
@given(st.text() | st.from_regex(r"(page|pp?\.|§|section|chapter) ?[\w.–-]{0,12}"))
def test_any_text_is_parsed_and_resolved(question):
    found = parse(question)
    if found is not None:
        taken = resolve(found, [_BOOK, _PLAIN])
        assert "\n" not in taken.statement
        assert taken.statement
        for document in (_BOOK, _PLAIN):
            pages = taken.pages.get(document.document, ())
            assert all(1 <= page <= len(document.labels) for page in pages)


def _resolve(question: str, *documents: Contents):
    return resolve(parse(question), documents or (_BOOK,))


@pytest.mark.parametrize(
    ("question", "pages", "numbering"),
    [
        ("page 47", [50], "printed"),
        ("page iii", [3], "printed"),
        ("page III", [3], "printed"),
        ("page 047", [50], "printed"),
        ("pages 12-15", [15, 16, 17, 18], "printed"),
        ("pages 112-15", [115, 116, 117, 118], "printed"),
        ("pages 15-12", [15, 16, 17, 18], "printed"),
        ("pages ii-2", [2, 3, 4, 5], "printed"),
        ("pages 195-300", [198, 199, 200], "printed"),
        ("page A-2", [202], "printed"),
        ("page 198", [198], "physical"),  # the last printed number is 197
        ("page 202", [202], "physical"),
        ("PDF page 47", [47], "physical"),
        ("pages 0-2 of the PDF", [1, 2], "physical"),
        ("page forty-seven", [50], "printed"),
        ("the last page", [202], "physical"),
        ("the last three pages", [200, 201, 202], "physical"),
        ("the first 2 pages", [1, 2], "physical"),
        ("the last 999 pages", list(range(1, 203)), "physical"),
    ],
)
def test_which_pages_a_number_means(question, pages, numbering):
    taken = _resolve(question)
    assert list(taken.pages["book"]) == pages
    assert taken.numbering == numbering


def test_both_numbers_are_given_where_they_differ():
    assert _resolve("page 47").statement == "page 47 as printed, 50 of the file"
    assert _resolve("PDF page 47").statement == "page 47 of the file, printed 44"
    assert _resolve("pages 12–15").statement == "pages 12–15 as printed, 15–18 of the file"
    assert _resolve("page 47", _PLAIN).statement == "page 47"


def test_what_is_not_there_is_said_with_what_is():
    taken = _resolve("What is on page 900?")
    assert taken.empty
    assert taken.statement == ("there is no page 900: book.pdf has 202 pages, printed i to A-2")
    assert _resolve("page 51", _PLAIN).statement == ("there is no page 51: plain.pdf has 50 pages")
    assert _resolve("printed page 198").empty
    assert _resolve("section 9").statement == (
        "there is no section 9: book.pdf has chapters 1 to b"
    )
    assert _resolve("section 9", _PLAIN).statement == (
        "there is no section 9: plain.pdf has no numbered sections"
    )


def test_pages_of_several_documents_are_of_one_numbering():
    taken = _resolve("page iii", _BOOK, _PLAIN)
    assert taken.pages == {"book": (3,)}
    taken = _resolve("page 40", _BOOK, _PLAIN)
    assert taken.pages == {"book": (43,), "plain": (40,)}
    assert taken.statement == "page 40 as printed, 43 of book.pdf; page 40 of plain.pdf"


def test_a_label_that_two_pages_bear_means_both():
    twice = Contents("twice", "twice.pdf", ("1", "2", "1", "2"), ())
    assert _resolve("page 2", twice).pages == {"twice": (2, 4)}


def test_a_page_of_a_chapter_is_no_range():
    labels = ("1-1", "1-2", "2-1", "2-2")
    assert _resolve("page 2-1", Contents("c", "c.pdf", labels, ())).pages == {"c": (3,)}


@pytest.mark.parametrize(
    ("question", "numbers", "statement"),
    [
        ("section 3.2", ("3.2",), "section 3.2 Commands"),
        ("chapter 3", ("3",), "section 3 Shells"),
        ("chapter III", ("3",), "section 3 Shells"),
        ("appendix B", ("b",), "section B Notes"),
    ],
)
def test_sections_are_found_by_number(question, numbers, statement):
    taken = _resolve(question)
    assert taken.sections == {"book": numbers}
    assert taken.statement == statement


def _written(value: int) -> str:
    """A roman numeral, letter by letter of each decimal place."""
    places = [("c", "d", "m"), ("x", "l", "c"), ("i", "v", "x")]
    patterns = ["", "a", "aa", "aaa", "ab", "b", "ba", "baa", "baaa", "ac"]
    digits = f"{value:03d}"
    letters = (
        patterns[int(d)].translate(str.maketrans("abc", "".join(p)))
        for d, p in zip(digits, places, strict=True)
    )
    return "".join(letters)


def test_roman_numerals():
    for value in range(1, 400):
        assert roman(_written(value)) == value
        assert roman(_written(value).upper()) == value
    numerals = {_written(value) for value in range(1, 400)}
    others = re.findall(r"\w+", "iiii vv ic il xm iix d m mix iviv x1 page")
    assert all(roman(text) is None for text in others if text not in numerals)
    assert roman("") is None
