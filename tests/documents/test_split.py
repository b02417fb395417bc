"""Pages to passages."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.documents.pages import Document, Heading, Page
from pippin.apps.documents.split import LONGEST, split

_WORDS = st.text("abcdefgh é.,;!?-–()", min_size=1, max_size=30)
_TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["\n\n", "\n", " ", "\n \n", "Ends here. "]),
        _WORDS,
        st.integers(1, 2000).map(lambda n: "x" * n),
        st.integers(1, 200).map(lambda n: "A sentence of some words. " * n),
    ),
    max_size=30,
).map("".join)


def _document(*pages: Page) -> Document:
    return Document(Path("some/manual.pdf"), "ab" * 32, "A manual", pages)


def _page(number: int, text: str, *headings: Heading) -> Page:
    return Page(number, f"{number}-label", text, headings, "text")


@st.composite
def _pages(draw: st.DrawFn) -> tuple[Page, ...]:
    pages = []
    for number, text in enumerate(draw(st.lists(_TEXTS, max_size=4)), 1):
        starts = draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=4, unique=True))
        headings = [Heading(1, str(i), "Title", start) for i, start in enumerate(sorted(starts))]
        pages.append(_page(number, text, *headings))
    return tuple(pages)


@settings(deadline=None, max_examples=50)
@given(_pages())
def test_passages_are_the_text_in_order_and_lose_nothing_but_white_space(pages):
    passages = [part.passage for part in split(_document(*pages))]
    for page in pages:
        at = 0
        for passage in (p for p in passages if p.page == page.number):
            assert page.text[at : passage.start].strip() == ""
            assert passage.text == page.text[passage.start : passage.end]
            assert passage.text == passage.text.strip() != ""
            assert len(passage.text) <= LONGEST
            assert passage.label == page.label
            at = passage.end
        assert page.text[at:].strip() == ""
    assert [p.page for p in passages] == sorted(p.page for p in passages)


def test_paragraphs_stay_whole_and_fill_passages_evenly():
    paragraphs = [f"Paragraph {n} " + "word " * 30 + "end." for n in range(12)]
    (*passages,) = split(_document(_page(1, "\n\n".join(paragraphs))))
    texts = [part.passage.text for part in passages]
    assert "\n\n".join(texts) == "\n\n".join(paragraphs)
    assert all(text.startswith("Paragraph") and text.endswith("end.") for text in texts)
    lengths = [len(text) for text in texts]
    assert min(lengths) > max(lengths) / 2


def test_a_long_paragraph_is_cut_at_sentence_ends():
    sentences = [f"Sentence {n} has " + "many words " * 9 + "in it." for n in range(30)]
    parts = list(split(_document(_page(1, " ".join(sentences)))))
    assert len(parts) > 3
    for part in parts:
        assert re.fullmatch(r"(Sentence \d+ has (many words )+in it\. ?)+", part.passage.text)


@pytest.mark.parametrize(
    "text",
    ["Hello there. " * 40_000, "1. " * 100_000, "w" * 500_000, "a" + " " * 200_000 + "b. c"],
    ids=["sentences", "numbers", "word", "spaces"],
)
def test_a_text_without_paragraphs_takes_time_by_its_length(text):
    """Seconds where it grew with the square of the length: minutes."""
    start = time.process_time()
    parts = list(split(_document(_page(1, text))))
    assert time.process_time() - start < 8
    assert "".join("".join(part.passage.text.split()) for part in parts) == "".join(text.split())


def test_a_long_sentence_is_cut_between_words_and_a_long_word_anywhere():
    texts = [p.passage.text for p in split(_document(_page(1, "word " * 400)))]
    assert all(set(text.split()) == {"word"} for text in texts)
    texts = [p.passage.text for p in split(_document(_page(1, "x" * (2 * LONGEST + 5))))]
    assert [len(text) for text in texts] == [LONGEST, LONGEST, 5]


def test_a_heading_begins_a_passage_and_holds_on_the_pages_after_it():
    body = "Some words about it, enough to be a passage of their own. " * 4
    first = f"1 Start\n\n{body}\n\n1.1 Then\n\n{body}"
    second = f"{body}\n\n2 Later\n\n{body}"
    parts = list(
        split(
            _document(
                _page(1, first, Heading(1, "1", "Start", 0), _at(first, "1.1", "Then", 2)),
                _page(2, second, _at(second, "2", "Later", 1)),
                _page(3, body),
            )
        )
    )
    seen = [(p.passage.page, p.passage.section, p.sections) for p in parts]
    assert seen == [
        (1, "1 Start", ("1",)),
        (1, "1.1 Then", ("1.1",)),
        (2, "1.1 Then", ("1.1",)),
        (2, "2 Later", ("2",)),
        (3, "2 Later", ("2",)),
    ]


def test_a_bare_heading_goes_with_the_text_below_it_and_both_sections_are_known():
    text = "3 Shells\n\n3.1 Quoting\n\n" + "A quote removes the meaning of a character. " * 5
    headings = (_at(text, "3", "Shells", 1), _at(text, "3.1", "Quoting", 2))
    (part,) = split(_document(_page(1, text, *headings)))
    assert part.passage.section == "3.1 Quoting"
    assert part.sections == ("3", "3.1")


def test_pages_without_text_have_no_passages():
    assert list(split(_document(Page(1, "1", "", (), "none"), _page(2, " \n\n ")))) == []


def _at(text: str, number: str, title: str, level: int) -> Heading:
    return Heading(level, number, title, text.index(f"{number} {title}"))
