"""The end of the context, other models, and thinking: what a conversation makes of them."""

from pathlib import Path

import numpy as np
import pytest

from pippin.apps.chat import ChatSession
from pippin.apps.models import Model
from pippin.runtime.chat_template import ChatTemplate
from pippin.runtime.errors import ContextError, InputError
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import IM_END, VOCAB, write_tokenizer
from support.fake_engine import FakeEngine, hashed

# As Qwen3's: thinking stays in the turn under way alone.
_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer(tmp_path))


def _session(tokenizer: Tokenizer, context: int = 200, **sampling) -> ChatSession:
    sampling = {"max_tokens": 8, "ignore_eos": True, **sampling}
    engine = FakeEngine(hashed(VOCAB), VOCAB, context)
    return ChatSession(Model(Generator(engine, tokenizer), {}), system="S", sampling=sampling)


def _say(session: ChatSession, text: str) -> str:
    return "".join(chunk.text for chunk in session.reply(text))


def _fill(session: ChatSession) -> int:
    """Talk until the context is full; how many turns that were."""
    for turn in range(100):
        try:
            _say(session, f"message {turn}")
        except ContextError:
            return turn
    raise AssertionError("the context never fills")


def test_the_oldest_turns_are_dropped_and_kept(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer)
    turns = _fill(session)
    messages = list(session.messages)
    gone = session.drop_oldest("and now?")
    assert gone > 0
    assert gone % 2 == 0
    said = _say(session, "and now?")
    assert session.messages[:-2] == messages  # nothing is forgotten
    # the model says what it says to a conversation that never had those turns
    fresh = _session(tokenizer)
    fresh.messages = [messages[0], *messages[1 + gone :]]
    assert _say(fresh, "and now?") == said
    assert session.used_tokens() <= 200
    assert turns > 2


def test_a_drop_frees_more_than_one_turn_needs(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer, context=400)
    _fill(session)
    session.drop_oldest("x")
    assert session.used_tokens() <= 300
    before = session.dropped
    _say(session, "x")
    _say(session, "y")
    assert session.dropped == before


def test_a_message_that_is_too_long_alone_drops_nothing(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer)
    _say(session, "a")
    with pytest.raises(ContextError, match="the message alone has"):
        session.drop_oldest("x" * 300)
    assert session.dropped == 0


def test_undo_and_clear(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer)
    _say(session, "a")
    before = list(session.messages)
    _say(session, "b")
    assert session.undo()["content"] == "b"
    assert session.messages == before
    session.clear()
    assert session.messages == [{"role": "system", "content": "S"}]
    with pytest.raises(InputError, match="nothing has been said"):
        session.undo()


def test_the_system_prompt_changes_and_goes(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer)
    session.system = "T"
    assert session.messages == [{"role": "system", "content": "T"}]
    session.system = None
    assert session.messages == []


def test_another_model_goes_on(tokenizer: Tokenizer) -> None:
    session = _session(tokenizer)
    _say(session, "a")
    other = Model(Generator(FakeEngine(hashed(VOCAB, 5.0), VOCAB, 300), tokenizer), {})
    fresh = ChatSession(other, sampling=session.sampling)
    fresh.messages = list(session.messages)
    session.use(other)
    assert session.context == 300
    assert _say(session, "b") == _say(fresh, "b")
    plain = Model(Generator(other.generator.engine, _without_template(tokenizer)), {})
    with pytest.raises(InputError, match="no chat template"):
        session.use(plain)
    assert session.model is other


def _without_template(tokenizer: Tokenizer) -> Tokenizer:
    import copy

    other = copy.copy(tokenizer)
    other.chat_template = None
    return other


@pytest.mark.parametrize("opened", [False, True])
def test_thinking_is_told_apart_counted_and_cut(tokenizer: Tokenizer, opened: bool) -> None:
    source = (
        _THINKING.replace("assistant\n{% endif", "assistant\n<think>{% endif")
        if opened
        else (_THINKING)
    )
    tokenizer.chat_template = ChatTemplate(source, {})
    reply = ("" if opened else "<think>") + "\nLet me see.\n</think>\n\nYes."
    session = ChatSession(Model(Generator(_answers(reply), tokenizer), {}))
    chunks = list(session.reply("Is it?"))
    assert "".join(chunk.text for chunk in chunks) == "Yes."
    assert "".join(chunk.reasoning for chunk in chunks) == "Let me see."
    tokens = len(reply) - len("Yes.")  # a byte is a token here
    assert abs(chunks[-1].reasoning_tokens - tokens) <= 1
    assert session.messages[-1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Let me see.",
    }
    engine = session.model.generator.engine
    list(session.reply("Really?"))
    prompt = bytes(t for t in engine.seen if t < 256).decode()
    assert "Let me see." not in prompt
    assert "Yes." in prompt


def _answers(reply: str) -> FakeEngine:
    """Says `reply` after each prompt; `seen` is the last prompt."""
    ids = [*reply.encode(), IM_END]

    def model(tokens: list[int]) -> np.ndarray:
        engine.place = 0 if engine.fresh else engine.place + 1
        engine.fresh = False
        return np.where(np.arange(VOCAB) == ids[min(engine.place, len(ids) - 1)], 20.0, 0.0)

    class Answers(FakeEngine):
        fresh, place = True, 0
        seen: tuple[int, ...] = ()

        def open(self, capacity: int | None = None):
            session = super().open(capacity)
            prefill = session.prefill

            def fresh_prefill(tokens, **options):
                self.fresh = True
                self.seen = (*session.tokens, *tokens)
                return prefill(tokens, **options)

            session.prefill = fresh_prefill
            return session

    engine = Answers(model, VOCAB)
    return engine
