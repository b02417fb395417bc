"""Documents that are attached to a conversation, in a real terminal."""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fpdf import FPDF

from pippin.apps.chat import ChatSession
from pippin.apps.chat.documents import AttachedDocuments
from pippin.apps.chat.saved import ChatStore, SavedChat
from pippin.apps.models import Model
from pippin.cli import cli
from pippin.runtime.errors import InputError
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import VOCAB, write_tokenizer
from support.command_line import make_chat_model
from support.fake_embedder import FakeEmbedder
from support.fake_engine import FakeEngine, hashed
from support.terminal import CTRL_C, CTRL_D, TAB, Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
Start = Callable[..., Terminal]

FILLING = "Nothing much is told about this room, which has a floor and walls. " * 6
ROOMS = ("cellar", "kitchen", "attic", "garden")
FACTS = [f"The {room} has a lamp of {i} watts. {FILLING}" for i, room in enumerate(ROOMS, 41)]
QUESTION = "Which lamp has the attic?"
REPLY = "The attic has a lamp of 43 watts. It is quite lovely in the evening there."


def _pdf(path: Path, pages: list[str], password: str = "") -> Path:
    book = FPDF()
    book.set_font("helvetica", size=11)
    for text in pages:
        book.add_page()
        book.multi_cell(0, 6, text)
    if password:
        book.set_encryption(owner_password="owner", user_password=password)
    path.write_bytes(bytes(book.output()))
    return path


def _messages(store: ChatStore) -> list[dict]:
    return store.read(store.find(None)).messages


def test_a_long_pdf_answers_from_its_pages(
    scripted: Start, tmp_path: Path, store: ChatStore
) -> None:
    _pdf(tmp_path / "house.pdf", FACTS)
    chat = scripted({QUESTION: REPLY}, cwd=tmp_path, columns=200)
    chat.say("/attach house.pdf")
    assert "house.pdf (4 pages): messages are answered from it" in chat.lines
    chat.wait("from house.pdf ·")  # below the prompt
    chat.say(QUESTION)
    assert REPLY in chat.lines
    assert "1: p. 3: “The attic has a lamp of 43 watts.”" in chat.lines
    assert any(line.startswith("1 of 2 sentences without a source in") for line in chat.lines)
    asked = _messages(store)[0]
    assert asked["content"] == QUESTION
    (attic,) = [file for file in asked["attachments"] if file["page"] == 3]
    assert attic["name"] == "house.pdf p. 3"
    assert attic["text"].startswith("The attic has a lamp of 43 watts.")
    size = sum(len(file["text"]) for file in asked["attachments"])
    assert size <= 1000  # bytes are tokens, and the context 4000
    chat.say("/stats")  # the passages are not sent any more: the conversation is short again
    used = re.search(r"context: (\d+) of 4,000", chat.text)
    assert used is not None
    assert int(used[1]) < 200
    chat.say("/regen")  # which searches anew, and adds nothing to what it had
    assert _messages(store)[0] == asked


def test_what_the_document_does_not_have(scripted: Start, tmp_path: Path, store: ChatStore) -> None:
    _pdf(tmp_path / "house.pdf", FACTS)
    replies = {"Who invented bicycles?": "Karl Drais did.", "What is on page 2?": "A kitchen."}
    chat = scripted(replies, cwd=tmp_path, columns=160)
    chat.say("/attach house.pdf")
    chat.say("Who invented bicycles?")
    nothing = "(not found in the document: no passage comes near it; answered without passages)"
    assert nothing in chat.lines
    assert "Karl Drais did." in chat.lines
    assert "without a source" not in chat.text
    chat.say("What is on page 2?")
    assert "(searched page 2)" in chat.lines
    chat.say("What is on page 9?")
    assert "(not found in the document: there is no page 9: house.pdf has 4 pages" in chat.text
    messages = _messages(store)
    assert "attachments" not in messages[0]
    assert {file["page"] for file in messages[2]["attachments"]} == {2}


def test_short_files_go_with_the_next_message(
    scripted: Start, tmp_path: Path, store: ChatStore
) -> None:
    _pdf(tmp_path / "short.pdf", ["first words", "last words"])
    (tmp_path / "code.md").write_text("# Title\n\n    indented\n")
    chat = scripted({"What?": "Words."}, cwd=tmp_path)
    chat.say("/attach short.pdf")
    chat.say("/attach 'code.md'")
    chat.wait("+short.pdf · +code.md")
    chat.say("/attach")
    assert "short.pdf: goes with your next message" in chat.lines
    chat.say("What?")
    assert _messages(store)[0]["attachments"] == [
        {"name": "short.pdf", "text": "[p. 1]\nfirst words\n\n[p. 2]\nlast words"},
        {"name": "code.md", "text": "# Title\n\n    indented"},
    ]


def test_a_long_text_comes_back_and_goes(scripted: Start, tmp_path: Path, store: ChatStore) -> None:
    (tmp_path / "house.txt").write_text("\n\n".join(FACTS))
    chat = scripted({QUESTION: REPLY}, cwd=tmp_path, columns=120)
    chat.say("/attach house.txt")
    chat.say(QUESTION)
    assert "1: house.txt: “The attic has a lamp of 43 watts.”" in chat.lines
    chat.send(CTRL_D)
    assert chat.end() == 0
    (saved,) = store.read(store.find(None)).documents
    assert saved["path"] == str(tmp_path / "house.txt")

    chat = scripted({QUESTION: REPLY}, "--resume", cwd=tmp_path, columns=120)
    chat.wait("house.txt: messages are answered from it")
    chat.say(QUESTION)
    assert "1: house.txt: “The attic has a lamp of 43 watts.”" in chat.lines
    chat.prompt()
    chat.send("/attach off h")
    chat.prompt("/attach off h")
    chat.send(TAB)
    chat.prompt("/attach off house.txt")
    chat.send(CTRL_C)
    chat.say("/attach off garden.txt")
    assert "no document garden.txt is attached; attached: house.txt" in chat.lines
    chat.say("/attach off")
    assert "detached: house.txt" in chat.lines
    chat.say("/attach")
    assert "nothing is attached; /attach FILE attaches a file" in chat.lines
    chat.say(QUESTION)
    assert "attachments" not in _messages(store)[-2]
    assert store.read(store.find(None)).documents == []


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_file_that_is_not_what_it_was(
    scripted: Start, tmp_path: Path, store: ChatStore, change: str
) -> None:
    path = tmp_path / "house.txt"
    path.write_text("\n\n".join(FACTS))
    chat = scripted({QUESTION: REPLY}, cwd=tmp_path)
    chat.say("/attach house.txt")
    chat.say(QUESTION)
    chat.send(CTRL_D)
    chat.end()
    path.unlink() if change == "gone" else path.write_text("other words")
    chat = scripted({QUESTION: REPLY}, "--resume", cwd=tmp_path, columns=240)
    chat.prompt()
    (line,) = [line for line in chat.lines if "is not attached any more" in line]
    assert line.startswith(str(path))
    assert ("no such file" if change == "gone" else "has changed") in line
    chat.say(QUESTION)
    assert REPLY in chat.lines
    assert "attachments" not in _messages(store)[-2]


def test_refusals_are_one_line(scripted: Start, tmp_path: Path) -> None:
    _pdf(tmp_path / "secret.pdf", FACTS, password="x")
    _pdf(tmp_path / "house.pdf", FACTS)
    chat = scripted(cwd=tmp_path, columns=200)
    for name, part in (
        ("missing.pdf", "there is no file missing.pdf in"),
        ("secret.pdf", "secret.pdf is encrypted"),
        (".", "is a directory; give the files in it"),
    ):
        chat.say(f"/attach {name}")
        typed = chat.lines.index(f"> /attach {name}")
        assert part in chat.lines[typed + 1]
        assert chat.lines[typed + 2] == ">"
    chat.say("/attach house.pdf")
    chat.say("/attach house.pdf")
    assert "house.pdf is attached already; /attach lists what is" in chat.lines


def test_a_new_conversation_has_no_documents(
    scripted: Start, tmp_path: Path, store: ChatStore
) -> None:
    _pdf(tmp_path / "house.pdf", FACTS)
    chat = scripted({QUESTION: REPLY}, cwd=tmp_path, columns=160)
    chat.say("/attach house.pdf")
    chat.say(QUESTION)
    chat.say("/clear")
    chat.say("Anything?")
    assert "attachments" not in _messages(store)[0]
    chat.say("/load")
    chat.wait("from house.pdf ·")


@pytest.fixture
def session(tmp_path: Path) -> ChatSession:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path / "tokenizer"))
    return ChatSession(Model(Generator(FakeEngine(hashed(VOCAB), VOCAB, 8000), tokenizer), {}))


def test_old_passages_are_left_out_of_what_is_sent(session: ChatSession, tmp_path: Path) -> None:
    """And what was computed is reused up to the message that had them."""
    session.sampling = {"max_tokens": 5, "ignore_eos": True}
    with_passages = [{"name": "b p. 1", "text": "x" * 900, "document": "0", "page": 1}]
    list(session.reply("one", attachments=with_passages))
    assert session.used_tokens() < 100
    (*_, last) = session.reply("two", attachments=with_passages)
    assert 900 < last.stats.prompt_tokens < 1200
    assert last.stats.cached_tokens == len("<user\n")  # up to where the first passages were


def test_an_index_that_was_interrupted_is_gone_on_with(tmp_path: Path, home: Path) -> None:
    path = _pdf(tmp_path / "house.pdf", FACTS)
    attached = AttachedDocuments(lambda: FakeEmbedder(fail_after=1))
    with pytest.raises(KeyboardInterrupt):
        attached.attach(str(path), lambda _: False)
    assert not attached
    attached.close()
    attached = AttachedDocuments(FakeEmbedder)
    attached.attach(str(path), lambda _: False)
    found = attached.look_up(QUESTION, lambda _: True)
    assert {passage.page for passage in found.passages} == {1, 2, 3, 4}
    assert any(passage.text.startswith("The attic") for passage in found.passages)
    attached.close()


def test_a_passage_that_has_no_room(tmp_path: Path, home: Path) -> None:
    attached = AttachedDocuments(FakeEmbedder)
    attached.attach(str(_pdf(tmp_path / "house.pdf", FACTS)), lambda _: False)
    found = attached.look_up(QUESTION, lambda _: False)
    assert (found.passages, found.missing) == ((), "the passages are too long for the context")
    attached.close()


def test_a_damaged_list_of_documents(store: ChatStore) -> None:
    store.make_folder()
    saved = {"format": 1, "loading": {"name": "x"}, "messages": [], "documents": [{"path": 1}]}
    store.path("a").write_text(json.dumps(saved))
    with pytest.raises(InputError, match="documents must be objects"):
        store.read("a")


def test_lines_of_a_pipe_are_answered_from_documents_too(
    tmp_path: Path, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply alone goes to stdout."""
    monkeypatch.setattr("pippin.apps.embedders.load_embedder", lambda *_, **__: FakeEmbedder())
    model = make_chat_model(tmp_path / "model", max_position_embeddings=8000)
    house = _pdf(tmp_path / "house.pdf", FACTS)
    documents = [
        {"path": str(house), "sha256": hashlib.sha256(house.read_bytes()).hexdigest()},
        {"path": str(tmp_path / "gone.txt"), "sha256": "0"},
    ]
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi."}]
    loading = {"name": str(model), "backend": "mlx"}
    store.write("a", SavedChat(said, loading, {"max_tokens": 4}, documents=documents))
    args = ["chat", "--resume", "a", "--seed", "1", "--ignore-eos"]
    result = CliRunner().invoke(cli, args, input=QUESTION.encode(), catch_exceptions=False)
    assert f"{tmp_path / 'gone.txt'} is not attached any more" in result.stderr
    assert result.stdout.count("\n") <= 5  # four bytes and the line's end
    messages = _messages(store)
    assert len(messages) == 4
    assert {file["page"] for file in messages[2]["attachments"]} >= {3}
    assert [one["path"] for one in store.read("a").documents] == [str(house)]


def test_old_turns_are_dropped_for_passages_too(
    scripted: Start, tmp_path: Path, store: ChatStore
) -> None:
    _pdf(tmp_path / "house.pdf", FACTS)
    chat = scripted({"long": "word " * 600, QUESTION: REPLY}, cwd=tmp_path, columns=160)
    chat.say("/set max_tokens 3600")
    chat.say("long")
    chat.say("/set max_tokens default")
    chat.say("/set overflow drop")
    chat.say("/attach house.pdf")
    chat.say(QUESTION)
    assert "(the model no longer sees the first 2 messages of those it saw)" in chat.lines
    assert "1: p. 3: “The attic has a lamp of 43 watts.”" in chat.lines
    assert store.read(store.find(None)).dropped == 2
