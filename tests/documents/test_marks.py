"""Which sentences of an answer get a source, and what is taken out of a reply as it arrives."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.documents.marks import Claim, ClaimFilter, Sources, stands_on
from pippin.apps.documents.passages import Passage
from pippin.apps.documents.reader import AnswerReader, Sentence
from pippin.apps.documents.sentences import content_words, plain, split_sentences
from support.fake_embedder import FakeEmbedder

PAGE = (
    "The shell reads its startup files in a fixed order. It keeps 500 lines of history by "
    "default.\n\nA coprocess is a shell command that is preceded by the coproc reserved word. "
    "It does not wait for the command to finish."
)
OTHER = "Arrays are indexed from zero. A subscript must be an arithmetic expression."


def _passage(text: str, label: str, page: int = 1) -> Passage:
    return Passage("sha", "book.pdf", page, label, "", 0, len(text), text)


def _sources(embedder: FakeEmbedder | None = None) -> Sources:
    passages = [_passage(PAGE, "xii", 1), _passage(OTHER, "1", 2)]
    return Sources(passages, [PAGE, OTHER], embedder)


@pytest.mark.parametrize(
    ("sentence", "rule", "quote"),
    [
        ("A coprocess is a shell command that is preceded by the coproc reserved word.", "quoted",
         "A coprocess is a shell command that is preceded by the coproc reserved word."),
        ("preceded by the coproc\n  RESERVED word", "quoted",
         "A coprocess is a shell command that is preceded by the coproc reserved word."),
        ("By default, it keeps just 500 lines of the history.", "words",
         "It keeps 500 lines of history by default."),
        ("Array subscripts must be constant expressions.", None, None),
        ("Arrays are indexed from zero, and a subscript must be an arithmetic expression.", "words",
         "Arrays are indexed from zero. A subscript must be an arithmetic expression."),
        ("By default, 1000 lines of history are kept.", None, None),  # another number
        ("By default, 500 lines of history are not kept.", None, None),  # the opposite
        ("It waits for the command to finish.", None, None),  # the opposite of the last one
        ("The shell.", None, None),  # says nothing
        ("The capital of Portugal is Lisbon.", None, None),
    ],
)  # fmt: skip
def test_the_rule(sentence: str, rule: str | None, quote: str | None) -> None:
    support = _sources().support(sentence)
    assert (support and support.rule, support and support.quote) == (rule, quote)


def test_other_words_for_the_same_need_the_embedder() -> None:
    sentence = "A coprocess is a shell command that is started by the coproc reserved keyword."
    assert _sources().support(sentence) is None
    assert _sources(FakeEmbedder()).support(sentence).rule == "meaning"


def test_a_quotation_that_is_not_on_its_page_is_none() -> None:
    other = PAGE.replace("500", "600")
    sources = Sources([_passage(PAGE, "1")], [other])
    assert sources.support("It keeps 500 lines of history by default.") is None
    assert sources.support("The shell reads its startup files in a fixed order.") is not None


def test_a_source_that_the_model_names_goes_first_if_it_holds() -> None:
    twice = [_passage(OTHER, "4"), _passage(OTHER, "5")]
    sources, said = Sources(twice, [OTHER, OTHER]), "Arrays are indexed from zero."
    assert sources.support(said).passage == 0
    for claim in (Claim(2, None), Claim(None, "5")):
        support = sources.support(said, [claim])
        assert support.passage == 1
        assert sources.confirms(claim, support)
    wrong = Claim(None, "77")
    support = sources.support(said, [wrong])
    assert support.passage == 0
    assert not sources.confirms(wrong, support)


def test_spelling_of_the_page_does_not_matter() -> None:
    page = "The ﬁrst ar-\nguments of “set”\n are kept — all of them."
    assert stands_on('The first arguments of "set" are kept - all of them.', page)
    assert not stands_on("The second arguments", page)
    assert not stands_on("  ", page)


@given(st.lists(st.text(alphabet="ab .!\n'1not", max_size=60), min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_supports_is_a_text_of_the_passage(texts: list[str], data: st.DataObject) -> None:
    sources = Sources([_passage(text, str(n)) for n, text in enumerate(texts)], texts)
    said = data.draw(st.text(alphabet="ab .!\n'1not", max_size=60) | st.sampled_from(texts))
    if support := sources.support(said):
        text = texts[support.passage]
        assert " ".join(text[support.start : support.end].split()) == support.quote
        assert stands_on(support.quote, text)


@given(st.text(alphabet="aB1. !?\n\te.g-", max_size=120), st.booleans())
def test_sentences_leave_out_nothing_but_space(text: str, lines: bool) -> None:
    spans = split_sentences(text, lines=lines)
    kept = "".join(text[start:end] for start, end in spans)
    assert "".join(kept.split()) == "".join(text.split())
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)
    assert spans == sorted(spans)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("See e.g. Bash 5.2. It runs.", ["See e.g. Bash 5.2.", "It runs."]),
        ("As Fig. 3 shows, J. Smith ran. Yes!", ["As Fig. 3 shows, J. Smith ran.", "Yes!"]),
        ("1. One thing.\n2. Another.", ["1. One thing.", "2. Another."]),
        ("a line\nthat goes on.\n\nNew one", ["a line\nthat goes on.", "New one"]),
        ('He said "stop." Then left.', ['He said "stop."', "Then left."]),
    ],
)
def test_sentence_ends(text: str, sentences: list[str]) -> None:
    assert [text[a:b] for a, b in split_sentences(text, lines=True)] == sentences


def test_content_words() -> None:
    assert content_words("How does the shell run the running of commands?") == [
        *("shell", "run", "run", "command"),
    ]
    assert plain("A\xad ﬁle’s") == "a file's"


_REPLIES = st.lists(
    st.sampled_from(
        ["It ends. ", "It\nends", " [1]", "[p. 12]", " (page xii)", "a[2]", " [not one]", "\n- x\n",
         "Then 5 more files are read! ", "[", "(", "e.g. ", "\n\n", "and so it is, "]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(_REPLIES, st.data())
@settings(max_examples=200, deadline=None)
def test_a_reply_reads_the_same_however_it_is_cut(reply: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    parts = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]

    def read(parts: list[str]) -> tuple[str, list[Sentence]]:
        reader, tokens, given = AnswerReader(_sources()), 0, []
        for number, part in enumerate(parts, 1):
            tokens += len(part)
            given += reader.feed(part, tokens, last=number == len(parts))
        said = [one for one in given if isinstance(one, Sentence)]
        return "".join(one for one in given if isinstance(one, str)), [
            (one.text, one.support, one.unfounded) for one in said
        ]

    text, sentences = read(parts)
    assert (text, sentences) == read([reply])
    assert (text, sentences) == read(list(reply) or [""])
    assert all(sentence[0] in text for sentence in sentences)


def test_the_space_before_a_claim_goes_though_an_open_bracket_was_given_up() -> None:
    text = "[" + "so it goes on and on " * 5 + "[p. 12]."
    by_character = ClaimFilter()
    pieces = [piece for char in text for piece in by_character.feed(char)]
    pieces += by_character.feed("", last=True)
    said = "".join(piece for piece in pieces if isinstance(piece, str))
    assert said == text.replace(" [p. 12]", "")


def test_claims_are_taken_out_and_an_index_of_an_array_is_not() -> None:
    given = ClaimFilter().feed("It ends. [1] So a[1] is set [p. 47], or (see page xii).", last=True)
    assert given == [
        *("It ends.", Claim(1, None), " So a[1] is set", Claim(None, "47"), ", or"),
        *(Claim(None, "xii"), "."),
    ]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("The first of all is this. The first of all is this. And so on.",
         "The first of all is this."),
        ("Yes it is.\nNo.\nNo.\nNo.\nNo.", "Yes it is.\nNo.\nNo."),
        ("It ends; if it is over, it ends; if it is over, it ends; if it is over, it ends.",
         "It ends; if it is over, it ends; if it is over, it ends; if it is over,"),
        ("The first of all is this. The first of all is that.",
         "The first of all is this. The first of all is that."),
    ],
)  # fmt: skip
def test_what_comes_again_is_not_given(reply: str, text: str) -> None:
    reader, given = AnswerReader(_sources()), []
    for at, letter in enumerate(reply, 1):
        given += reader.feed(letter, at, last=at == len(reply))
    assert "".join(one for one in given if isinstance(one, str)) == text
    assert reader.repeated == (text != reply)


def test_a_passage_at_its_place_has_no_page_read_through(monkeypatch: pytest.MonkeyPatch) -> None:
    passage = _passage("A coprocess is a shell command.", "1")
    monkeypatch.setattr("pippin.apps.documents.marks.plain", lambda text: text[:100].casefold())
    page = "x" * 200 + passage.text
    moved = replace(passage, start=200, end=len(page))
    assert Sources([moved], [page]).support("A coprocess is a shell command.") is not None
    assert Sources([passage], [page]).support("A coprocess is a shell command.") is None
