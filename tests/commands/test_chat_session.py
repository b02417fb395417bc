"""The conversation behind `pippin chat`."""

from pathlib import Path

import numpy as np
import pytest

from pippin.apps.chat import ChatSession
from pippin.apps.models import Model
from pippin.runtime.errors import ContextError, InputError
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import IM_END, VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, hashed, scripted


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer(tmp_path))


def _session(tokenizer: Tokenizer, engine: FakeEngine, **options) -> ChatSession:
    return ChatSession(Model(Generator(engine, tokenizer), {}), **options)


def _always(reply: str) -> FakeEngine:
    """Answers every turn with `reply`: it knows its place by the template's last words."""
    ids = [*reply.encode(), IM_END]
    head = list(b"assistant\n")

    def model(tokens):
        start = max(i for i in range(len(tokens)) if tokens[i - len(head) : i] == head or i == 0)
        if tokens[-len(head) :] == head:
            start = len(tokens)
        return scripted(ids, start, VOCAB)(tokens)

    return FakeEngine(model, VOCAB)


def _letters() -> FakeEngine:
    """Each letter depends on all tokens so far."""
    model = hashed(VOCAB)
    is_letter = np.array([chr(token).isalpha() and token < 128 for token in range(VOCAB)])
    return FakeEngine(lambda tokens: np.where(is_letter, model(tokens), -99.0), VOCAB)


def _say(session: ChatSession, text: str, **options) -> str:
    return "".join(chunk.text for chunk in session.reply(text, **options))


def test_the_conversation_is_kept(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always("Yes."), system="Be brief.")
    assert _say(session, "Is it?") == "Yes."
    assert _say(session, "Really?") == "Yes."
    assert session.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Really?"},
        {"role": "assistant", "content": "Yes."},
    ]


def test_each_turn_computes_only_what_is_new_and_says_what_a_cold_start_says(
    tokenizer: Tokenizer,
) -> None:
    engine, sampling = _letters(), {"max_tokens": 20}
    session = _session(tokenizer, engine, sampling=sampling)
    known = 1
    for text in ("one", "two", "three"):
        history = list(session.messages)
        before = engine.prefilled
        chunks = list(session.reply(text))
        stats = chunks[-1].stats
        assert engine.prefilled - before == stats.prompt_tokens - stats.cached_tokens
        assert stats.cached_tokens == known - 1  # a reply's last token is never computed
        known = stats.prompt_tokens + stats.reply_tokens
        cold = _session(tokenizer, _letters(), sampling=sampling)
        cold.messages = history
        assert _say(cold, text) == "".join(chunk.text for chunk in chunks)


def test_a_stopped_reply_is_kept_as_far_as_it_was_said(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always("one two three"))
    said = []
    for chunk in session.reply("count", should_stop=lambda: len(said) == 5):
        said.append(chunk.text)
    assert chunk.finish_reason == "cancelled"
    partial = {"role": "assistant", "content": "one t", "finish_reason": "cancelled"}
    assert session.messages[-1] == partial
    assert _say(session, "go on") == "one two three"


def test_a_closed_iterator_keeps_what_was_said(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always("one two three"))
    chunks = session.reply("count")
    text = next(chunks).text + next(chunks).text
    chunks.close()
    partial = {"role": "assistant", "content": text, "finish_reason": "cancelled"}
    assert session.messages[-1] == partial
    assert _say(session, "again") == "one two three"


def test_a_turn_stopped_before_a_word_is_forgotten(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always("Yes."))
    assert _say(session, "Is it?", should_stop=lambda: True) == ""
    assert session.messages == []
    assert _say(session, "Is it?") == "Yes."


def test_an_empty_reply_is_a_reply(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always(""))
    assert _say(session, "Say nothing.") == ""
    assert session.messages[-1] == {"role": "assistant", "content": ""}


def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(
    tokenizer: Tokenizer,
) -> None:
    session = _session(tokenizer, _always("Yes."))
    _say(session, "Is it?")
    before = list(session.messages)
    with pytest.raises(ContextError, match="512"):
        session.reply("x" * 600)
    assert session.messages == before
    assert _say(session, "Still?") == "Yes."


def test_refusals(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, _always("Yes."))
    with pytest.raises(InputError, match="the message is empty"):
        session.reply("")
    with pytest.raises(InputError, match="top_p"):
        _session(tokenizer, _always("Yes."), sampling={"top_p": 2.0})
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        _session(tokenizer, _always("Yes."))
