"""From a model's tokens to calls: the marks are special tokens, which a reply else leaves out."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from pippin.apps.reasoning import Reasoning, find_marks
from pippin.apps.tools import Content, detect, gather
from pippin.runtime.chat_template import ChatTemplate
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import IM_END, write_tokenizer
from support.fake_engine import FakeEngine, scripted
from support.tool_formats import tool_template

SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
THINKING = ChatTemplate("{{ messages[0].content }}[THINK][/THINK]", {})
THOUGHT = "[THINK]add[TOOL_CALLS]?[/THINK]\n"
CALL = '[TOOL_CALLS]add[ARGS]{"a": "é"}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return Tokenizer.from_parts(backend.to_str(), {}, {}, {"eos_token_id": IM_END})


def reply(tokenizer: Tokenizer, text: str, shown: tuple[str, ...]) -> list[str]:
    tokens = [*tokenizer.encode(text), IM_END]
    model = scripted(tokens, prompt=1, vocab_size=tokenizer.vocab_size)
    generator = Generator(FakeEngine(model, tokenizer.vocab_size), tokenizer)
    return [chunk.text for chunk in generator.stream([0], shown=shown)]


def test_thinking_and_a_call_come_out_of_special_tokens(tokenizer: Tokenizer) -> None:
    format, marks = detect(tool_template("mistral, third")), find_marks(THINKING)
    chunks = reply(tokenizer, THOUGHT + CALL, (*format.shown, *marks.shown))
    assert "".join(chunks) == THOUGHT + CALL
    splitter, parser = marks.splitter(), format.parser([{"name": "add"}])
    parts = [part for text in chunks for part in splitter.feed(text)] + splitter.finish()
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    content = [part.text for part in parts if isinstance(part, Content)]
    events = [event for text in content for event in parser.feed(text)] + parser.finish()
    assert thought == "add[TOOL_CALLS]?"
    text, (call,) = gather(events)
    assert text == ""
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": "é"})


def test_special_tokens_that_nobody_asked_for_are_left_out(tokenizer: Tokenizer) -> None:
    assert "".join(reply(tokenizer, THOUGHT + CALL, ())) == 'add?\nadd{"a": "é"}'
    assert "".join(reply(tokenizer, THOUGHT, ("[THINK]", "<no such token>"))) == "[THINK]add?\n"
