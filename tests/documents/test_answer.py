"""A question to an index, as events: what the model gets, what is asked of it, what it says."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pippin.apps.documents import answer
from pippin.apps.documents.answer import (
    Answered,
    Contrast,
    Event,
    Found,
    NotAttributed,
    NotFound,
    Options,
    Text,
    ask,
    weigh,
)
from pippin.apps.documents.index import Index, open_index
from pippin.apps.documents.passages import Hit, Passage
from pippin.apps.documents.prompt import build_prompt
from pippin.apps.documents.reader import Sentence
from pippin.apps.documents.result import Names, Result, page_notes, to_json
from pippin.runtime.errors import InputError
from support.document_answers import COPROCESS, PAGES, answering, book
from support.fake_embedder import FakeEmbedder

QUESTION = "Which reserved word is a coprocess preceded by?"
Ask = Callable[..., list[Event]]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with open_index(tmp_path / "index", FakeEmbedder()) as opened:
        opened.put(book())
        opened.embed()
        yield opened


@pytest.fixture
def asked(index: Index, tmp_path: Path) -> Ask:
    """Events of a question to a model that gives `reply` to whatever it is asked."""

    def run(reply: str, question: str = QUESTION, context: int = 4000, **options: object) -> list:
        model = answering(tmp_path / "model", lambda _: reply, context)
        return list(ask(model, index, question, Options(**options)))

    return run


def _of(kind: type, events: list[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_the_events_come_in_order(asked: Ask) -> None:
    events = asked(f"{COPROCESS} Lisbon is a town.\n")
    first, *middle, last = events
    assert isinstance(first, Found)
    assert {type(event) for event in middle} == {Text, Sentence}
    assert isinstance(last, Answered)
    text = "".join(event.text for event in _of(Text, events))
    assert text == last.text == f"{COPROCESS} Lisbon is a town."
    supported, bare = last.sentences
    assert events[events.index(supported) - 1] == Text(".")  # right behind its text
    assert last.passages[supported.support.passage].label == "2"
    assert supported.support.quote == COPROCESS
    assert bare.support is None
    assert (last.unsupported, last.finish_reason) == (1, "stop")
    assert last.stats.reply_tokens == len(text) + 2  # the line end, the end of turn


def test_the_model_gets_the_passages_and_the_question(index: Index, tmp_path: Path) -> None:
    seen = []
    model = answering(tmp_path / "model", lambda asked: seen.append(asked) or "Yes.")
    events = list(ask(model, index, QUESTION, Options(top=2)))
    assert len(events[0].hits) == 2
    prompt = seen[0]
    assert prompt.startswith("[1]\nA coprocess is a shell command")
    assert prompt.endswith(QUESTION)
    places = [prompt.index(hit.passage.text) for hit in events[0].hits]
    assert places == sorted(places)


def test_the_spans_of_the_prompt_are_the_passages(index: Index, tmp_path: Path) -> None:
    model = answering(tmp_path / "model", lambda _: "")
    passages = [hit.passage for hit in index.search(QUESTION, 4).hits]
    prompt = build_prompt(model.generator, QUESTION, passages, 100)
    assert len(prompt.spans) == len(passages) == 4
    for (start, end), passage in zip(prompt.spans, passages, strict=True):
        assert bytes(prompt.tokens[start:end]).decode().strip() == passage.text


def test_passages_that_do_not_fit_are_left_out_from_the_end(index: Index, tmp_path: Path) -> None:
    model = answering(tmp_path / "model", lambda _: "", 400)
    passages = [hit.passage for hit in index.search(QUESTION, 4).hits]
    prompt = build_prompt(model.generator, QUESTION, passages, 50)
    assert 0 < len(prompt.passages) < 4
    assert list(prompt.passages) == passages[: len(prompt.passages)]
    assert len(prompt.tokens) <= 350
    model = answering(tmp_path / "model", lambda _: "", 280)
    shorter = build_prompt(model.generator, QUESTION, passages, 50)
    assert [p.text for p in shorter.passages] == [COPROCESS]  # its first sentence
    with pytest.raises(InputError, match="context of 280 tokens has no room for a passage"):
        build_prompt(model.generator, QUESTION, passages, 200)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Who painted the ceiling?", "no passage comes near it"),
        ("Who painted the ceiling on page 2?", "nothing on page 2 as printed, 3 of the file"),
        ("What is on page 77?", "there is no page 77: book.pdf has 4 pages, printed i to 3"),
    ],
)
def test_what_is_not_there_is_not_asked(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, reason: str
) -> None:
    monkeypatch.setattr(answer, "SIMILARITY", 0.99)  # hashed words are near by chance
    model = answering(tmp_path / "model", lambda _: pytest.fail("the model was asked"))
    found, missing = ask(model, index, question)
    assert isinstance(found, Found)
    assert missing.reason.startswith(reason)


def test_a_page_is_asked_for_as_it_stands(asked: Ask) -> None:
    events = asked("Arrays are indexed from zero.", "What is on page 3?")
    assert events[0].filter.statement == "page 3 as printed, 4 of the file"
    assert {hit.passage.page for hit in events[0].hits} == {4}
    assert events[-1].sentences[0].support.rule == "quoted"


def _hit(text: str, similarity: float | None) -> Hit:
    passage = Passage("sha", "book.pdf", 1, "1", "3.2 Pipes", 0, len(text), text)
    return Hit(passage, 0.1, 1, None, 2.0, similarity)


@pytest.mark.parametrize(
    ("question", "similarities", "enough"),
    [
        ("What do nullglobs do?", (0.1, 0.2), True),  # its only word is there
        ("What do nullglobs eat?", (0.1, 0.2), False),
        ("What do nullglobs eat?", (0.1, 0.5), True),
        ("What do nullglobs eat?", (None, None), False),
        ("What about pipes?", (None, None), True),  # in the section's title
        ("What is this?", (None, None), True),  # has no word that says anything
        ("What about ants on page 7?", (0.1, 0.1), False),
    ],
)
def test_what_is_enough(question: str, similarities: tuple, enough: bool) -> None:
    hits = [_hit("The nullglob option.", similarities[0]), _hit("Else.", similarities[1])]
    assert weigh(question, hits).enough is enough


def test_claims_of_the_model_are_checked(asked: Ask) -> None:
    answered = asked(f"{COPROCESS} [1] Arrays are indexed from zero [p. 9]. Hm so [2].")[-1]
    first, second, third = answered.sentences
    assert answered.text == f"{COPROCESS} Arrays are indexed from zero. Hm so."
    assert (first.support.passage, first.unfounded) == (0, ())
    assert second.support is not None
    assert [claim.label for claim in second.unfounded] == ["9"]
    assert third.support is None
    assert [claim.number for claim in third.unfounded] == [2]


def test_what_a_model_thinks_is_no_part_of_the_answer(index: Index, tmp_path: Path) -> None:
    model = answering(tmp_path / "model", lambda _: f"<think>Hm. Well.</think>\n{COPROCESS}")
    template = model.generator.tokenizer.chat_template
    template.sources["default"] += "{# </think> is cut #}"
    answered = list(ask(model, index, QUESTION))[-1]
    assert answered.text == COPROCESS
    assert answered.sentences[0].support is not None


def test_an_answer_that_runs_in_a_circle_is_ended(asked: Ask) -> None:
    answered = asked(f"{COPROCESS} " * 50)[-1]
    assert (answered.text, answered.finish_reason) == (COPROCESS, "repeated")


def test_the_answer_is_cut_at_the_limit(asked: Ask) -> None:
    answered = asked(COPROCESS, max_tokens=20)[-1]
    assert (answered.text, answered.finish_reason) == (COPROCESS[:20].strip(), "length")


def test_the_contrast_has_no_passages(index: Index, tmp_path: Path) -> None:
    def reply(asked: str) -> str:
        return "From memory." if asked == QUESTION else "From the book."

    model = answering(tmp_path / "model", reply)
    events = list(ask(model, index, QUESTION, Options(contrast=True)))
    assert "".join(event.text for event in _of(Contrast, events)) == "From memory."
    assert _of(Answered, events)[0].text == "From the book."


def test_an_engine_that_shows_no_attention_is_no_failure(asked: Ask) -> None:
    events = asked(COPROCESS, attention=True)
    assert isinstance(events[-1], NotAttributed)
    assert isinstance(events[-2], Answered)


def test_stopping_ends_the_answer(index: Index, tmp_path: Path) -> None:
    model = answering(tmp_path / "model", lambda _: COPROCESS)
    events = list(ask(model, index, QUESTION, should_stop=lambda: True))
    assert events[-1].finish_reason == "cancelled"


def test_an_empty_question(index: Index, tmp_path: Path) -> None:
    model = answering(tmp_path / "model", lambda _: "")
    with pytest.raises(InputError, match="question is empty"):
        list(ask(model, index, "  \n"))


def test_names_of_places() -> None:
    pdf, notes = book(), book("notes.md", "other")
    notes = type(notes)(notes.path, "other", "", notes.pages[:1])
    at = Passage("sha", "book.pdf", 3, "2", "3.2 Pipes", 0, 1, "x")
    same = Passage("sha", "book.pdf", 3, "3", "", 0, 1, "x")
    text = Passage("other", "notes.md", 1, "1", "3.2 Pipes", 0, 1, "x")
    one, two = Names([pdf]), Names([pdf, notes])
    assert (one.mark(at), one.place(at)) == ("[p. 2]", "p. 2 (PDF page 3), 3.2 Pipes")
    assert (two.mark(at), two.place(same)) == ("[p. 2, book.pdf]", "p. 3, book.pdf")
    assert (two.mark(text), two.place(text)) == ("[notes.md, 3.2]", "notes.md, 3.2 Pipes")
    assert Names([notes]).mark(text) == "[notes.md, 3.2]"


def test_pages_read_by_ocr_or_not_at_all_are_told() -> None:
    document = book()
    pages = [
        type(page)(page.number, page.label, "", (), source)
        for page, source in zip(document.pages, ("none", "ocr", "ocr", "text"), strict=True)
    ]
    without, ocr = page_notes([type(document)(document.path, "", "", tuple(pages))])
    assert without.startswith("book.pdf: page 1 has no text")
    assert ocr == "book.pdf: the text of 2 pages is OCR's"
    assert page_notes([document]) == []


@pytest.mark.parametrize("question", [QUESTION, "What is on page 77?"])
def test_json_has_all_of_it(asked: Ask, question: str) -> None:
    result = Result(question, "m", "onnx", (book(),))
    for event in asked(f"{COPROCESS} So Lisbon is [p. 9].", question, contrast=True):
        result.add(event)
    document = to_json(result)
    assert document["question"] == question
    assert document["documents"][0]["pages"] == len(PAGES)
    if question != QUESTION:
        assert document["not_in_the_documents"].startswith("there is no page 77")
        assert (document["answer"], document["sentences"], document["passages"]) == (None, [], [])
        return
    first, second = document["sentences"]
    assert first["source"]["quote"] == COPROCESS
    assert (first["source"]["page"], first["source"]["label"]) == (3, "2")
    assert (second["source"], second["refused_marks"]) == (None, ["[p. 9]"])
    assert document["without_source"] == 1
    assert document["passages"][0]["similarity"] > 0
    assert document["answer_without_passages"].startswith(COPROCESS)


def test_not_found_says_nothing_else(asked: Ask) -> None:
    assert [type(event) for event in asked("", "What is on page 77?")] == [Found, NotFound]
