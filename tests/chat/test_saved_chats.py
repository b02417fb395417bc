"""Conversations on disk."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from pippin.apps.chat import ChatSession
from pippin.apps.chat.keeper import Keeper
from pippin.apps.chat.saved import ChatStore, SavedChat
from pippin.apps.models import Model
from pippin.apps.structured import choice
from pippin.runtime.errors import InputError
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, hashed

CHAT = SavedChat(
    messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Größe?", "attachments": [{"name": "a", "text": "x"}]},
        {"role": "assistant", "content": "2", "reasoning_content": "hm", "finish_reason": "length"},
    ],
    loading={"name": "smollm2", "backend": "onnx"},
    sampling={"temperature": 0.5, "stop": ["x"], "logit_bias": {3: -float("inf"), 4: 1.5}},
    settings={"think": "show"},
    dropped=1,
    grammar=choice(["yes", "no"]),
    created="2026-01-31T09:15:00+00:00",
)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path / "tokenizer"))
    return Model(Generator(FakeEngine(hashed(VOCAB), VOCAB), tokenizer), {})


def _keeper(model: Model, store: ChatStore | None, **sampling) -> Keeper:
    session = ChatSession(model, sampling={"max_tokens": 5, "ignore_eos": True, **sampling})
    return Keeper(session, {"name": "fake"}, store)


def _say(keeper: Keeper, text: str) -> str:
    return "".join(chunk.text for chunk in keeper.session.reply(text))


def test_what_is_written_is_read(store: ChatStore) -> None:
    store.write("one", CHAT)
    assert store.read("one") == CHAT
    text = store.path("one").read_text("utf-8")
    assert "Größe?" in text  # plain, for people and for other programs
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_nobody_else_can_read_it(store: ChatStore) -> None:
    before = os.umask(0)
    try:
        store.write("one", CHAT)
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path("one").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_write_that_fails_leaves_what_was_there(
    store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("one", CHAT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match="No space left"):
        store.write("one", SavedChat([], {"name": "x"}))
    assert store.read("one") == CHAT
    assert [path.name for path in store.folder.iterdir()] == ["one.json"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (None, "cannot be read as a saved chat"),
        ({"format": 9}, "no saved chat of format 1"),
        ({"messages": {}}, "no list of messages"),
        ({"messages": [{"role": "user"}]}, "message 0 of"),
        ({"messages": [{"role": "cook", "content": "x"}]}, "message 0 of"),
        ({"messages": [{"role": "user", "content": "x", "attachments": [1]}]}, "message 0 of"),
        ({"loading": {}}, "which model"),
        ({"loading": []}, "must be objects"),
        ({"sampling": {"heat": 1}}, "'heat', which there is not"),
        ({"sampling": {"logit_bias": {"a": 1}}}, "logit_bias"),
        ({"settings": {"think": "x"}}, "it must be fold or show"),
        ({"dropped": 9}, "it must be 0 to 3"),
        ({"grammar": {"kind": "regex"}}, "a saved grammar has a kind and a rule"),
        ({"grammar": {"kind": "regex", "rule": "/(/"}}, "this regex cannot be enforced"),
    ],
)
def test_damaged_files_are_named(store: ChatStore, change: dict | None, part: str) -> None:
    store.write("one", CHAT)
    path = store.path("one")
    document = json.loads(path.read_text("utf-8"))
    path.write_text('{"format": 1, "mess' if change is None else json.dumps(document | change))
    with pytest.raises(InputError) as caught:
        store.read("one")
    assert part in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [listed.name for listed in store.list(9)] == ["one"]


def test_finding(store: ChatStore) -> None:
    with pytest.raises(InputError, match="no saved chat in"):
        store.find(None)
    for number, name in enumerate(("2026-01-01_a", "2026-01-02_a", "trip")):
        store.write(name, CHAT)
        os.utime(store.path(name), (number, number))
    assert store.find(None) == "trip"
    assert store.find("2026-01-02") == "2026-01-02_a"
    with pytest.raises(InputError, match="2 saved chats begin with 2026"):
        store.find("2026")
    with pytest.raises(InputError, match="did you mean trip"):
        store.find("tripp")


def test_renaming(store: ChatStore, model: Model) -> None:
    keeper = _keeper(model, store)
    with pytest.raises(InputError, match="nothing has been said"):
        keeper.rename("trip")
    _say(keeper, "a")
    store.write("taken", CHAT)
    for name, part in (("taken", "already"), ("../x", "no name"), ("a.json", "no name")):
        with pytest.raises(InputError, match=part):
            keeper.rename(name)
    keeper.rename("trip")
    _say(keeper, "b")
    keeper.save()
    assert sorted(store.names()) == ["taken", "trip"]
    assert len(store.read("trip").messages) == 4


def test_two_that_go_on_with_one_conversation_both_keep_theirs(
    store: ChatStore, model: Model
) -> None:
    first = _keeper(model, store)
    _say(first, "a")
    first.save()
    second = _keeper(model, store)
    second.load(first.name)
    _say(first, "from the first")
    first.save()
    _say(second, "from the second")
    second.save()
    assert first.name != second.name
    assert store.read(first.name).messages[2]["content"] == "from the first"
    assert store.read(second.name).messages[2]["content"] == "from the second"


def test_a_reply_under_way_is_kept_as_one_that_was_stopped(store: ChatStore, model: Model) -> None:
    keeper = _keeper(model, store)
    chunks = keeper.session.reply("a")
    said = next(chunks).text
    keeper.save()
    assert store.read(keeper.name).messages == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": said, "finish_reason": "cancelled"},
    ]
    chunks.close()


def test_a_message_whose_answer_never_began_is_offered_again(
    store: ChatStore, model: Model
) -> None:
    keeper = _keeper(model, store)
    _say(keeper, "a")
    chunks = keeper.session.reply("x" * 40, progress=lambda *_: keeper.save())
    # The engine reads in chunks: what is on disk after the first has no answer yet.
    next(chunks)
    assert store.read(keeper.name).messages[-1]["role"] == "user"
    other = _keeper(model, store)
    resumed = other.load(keeper.name)
    assert resumed.unanswered == {"role": "user", "content": "x" * 40}
    assert len(other.session.messages) == 2
    chunks.close()


def test_what_was_taken_back_is_taken_back_on_disk(store: ChatStore, model: Model) -> None:
    keeper = _keeper(model, store)
    _say(keeper, "a")
    keeper.save()
    keeper.session.undo()
    keeper.save()
    assert store.read(keeper.name).messages == []
    keeper.forget_empty()
    assert store.names() == []


def test_settings_come_back_and_those_of_now_go_before_them(store: ChatStore, model: Model) -> None:
    keeper = _keeper(model, store, temperature=0.5, top_k=7)
    keeper.settings["think"] = "show"
    _say(keeper, "a")
    keeper.save()
    other = _keeper(model, store)
    other.load(keeper.name, {"temperature": 0.9})
    assert other.session.sampling["temperature"] == 0.9
    assert other.session.sampling["top_k"] == 7
    assert other.settings["think"] == "show"


def test_a_kv_cache_that_fits_no_more_is_passed_over(store: ChatStore, model: Model) -> None:
    keeper = _keeper(model, store)
    keeper.settings["keep_cache"] = "on"
    _say(keeper, "a")
    keeper.save()
    keeper.save_cache()
    assert keeper.load(keeper.name).cache_refusal is None
    assert keeper.session.cache.tokens
    saved = json.loads(store.cache_path(keeper.name).read_text())
    store.cache_path(keeper.name).write_text(json.dumps(saved | {"fingerprint": "other"}))
    assert "another model" in keeper.load(keeper.name).cache_refusal
    assert keeper.session.cache.tokens == []
    keeper.settings["keep_cache"] = "off"
    keeper.save_cache()
    assert not store.cache_path(keeper.name).exists()


def test_a_chat_that_keeps_nothing_leaves_what_it_loads_alone(
    store: ChatStore, model: Model
) -> None:
    keeper = _keeper(model, store)
    _say(keeper, "a")
    keeper.save()
    before = store.path(keeper.name).read_bytes()
    other = _keeper(model, None)
    other.load(keeper.name)
    assert len(other.session.messages) == 2
    _say(other, "b")
    other.save()
    other.save_cache()
    assert store.names() == [keeper.name]
    assert store.path(keeper.name).read_bytes() == before
