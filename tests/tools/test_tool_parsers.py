"""Calls in a reply, in each format: whole or in pieces, several, among text, and malformed."""

import json
import keyword
import re
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pippin.apps.tools import (
    CallArguments,
    CallStart,
    Content,
    ToolCall,
    ToolFormat,
    detect,
    gather,
)
from pippin.apps.tools.formats import FORMATS
from support.tool_formats import CALLS, MARKS, cut, tool_template

ALL = {format.name: format for format in FORMATS}
# json.loads, as the tests use it, and XML-like values give these back as they were
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), TEXT)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXT, inner, max_size=2)),
    max_leaves=4,
)
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda key: not keyword.iskeyword(key)
)
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)
NAMES = ("get_weather", "add", "search.web")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in NAMES]


def parse(format: ToolFormat, *pieces: str, tools: Any = ()) -> tuple[str, list[ToolCall]]:
    """All content, and the calls with ids 0, 1, …"""
    numbers = count()
    parser = format.parser(tools, new_id=lambda: str(next(numbers)))
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    starts = [event.index for event in events if isinstance(event, CallStart)]
    assert starts == list(range(len(starts)))
    return gather(events)


def typed(name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Tools that state which arguments are strings, as formats without types have to know."""
    kinds = {
        key: {"type": "string" if isinstance(value, str) else "object"}
        for key, value in arguments.items()
    }
    own = {"name": name, "parameters": {"type": "object", "properties": kinds}}
    return [{"type": "function", "function": own}]


@pytest.mark.parametrize("kind", CALLS)
@given(
    arguments=ARGUMENTS,
    name=st.sampled_from(NAMES),
    content=st.sampled_from(["", "Let me look.", "1 < 2 [x] {y}\n\nso:"]),
    places=st.lists(st.integers(0, 10**6), max_size=12),
)
@settings(max_examples=40, deadline=None)
def test_what_a_template_writes_is_read_again(kind, arguments, name, content, places) -> None:
    template = tool_template(kind)
    format = detect(template)
    assert format.name == kind.partition(",")[0]
    if format.bare:
        content = ""  # the call is the whole reply
    question = {"role": "user", "content": "?"}
    call = {"id": "abcdefgh1", "function": {"name": name, "arguments": json.dumps(arguments)}}
    answer = {"role": "assistant", "content": content, "tool_calls": [call]}
    messages = format.messages([question, answer])
    before = template.render([question], tools=TOOLS)
    whole = template.render(messages, tools=TOOLS, add_generation_prompt=False)
    reply = whole.removeprefix(before).removesuffix("<|end|>\n")
    tools = typed(name, arguments)
    text, calls = parse(format, reply, tools=tools)
    assert text == content
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [(name, arguments)]
    assert calls[0].id == ("abcdefgh1" if kind in ("mistral", "mistral, second") else "0")
    assert parse(format, *cut(reply, places), tools=tools) == (text, calls)


@pytest.mark.parametrize("kind", CALLS)
def test_several_calls_in_one_reply(kind: str) -> None:
    template = tool_template(kind)
    format = detect(template)
    calls = [
        {"id": f"abcdefgh{i}", "function": {"name": "add", "arguments": {"x": i, "s": "}\"'<]"}}}
        for i in range(3)
    ]
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    whole = template.render(format.messages([question, answer]), add_generation_prompt=False)
    reply = whole.partition("<assistant>")[2].removesuffix("<|end|>\n")
    tools = typed("add", {"x": 0, "s": ""})
    text, found = parse(format, reply, tools=tools)
    assert text == ""
    assert [json.loads(call.arguments)["x"] for call in found] == [0, 1, 2]
    assert parse(format, *reply, tools=tools) == (text, found)


@pytest.mark.parametrize("name", ALL)
@given(
    parts=st.lists(st.sampled_from(MARKS), max_size=12),
    places=st.lists(st.integers(0, 10**6), max_size=8),
)
@settings(max_examples=150, deadline=None)
@example(parts=["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{", "["], places=[])
def test_any_text_is_parsed_and_its_cuts_do_not_matter(name, parts, places) -> None:
    text = "".join(parts)
    content, calls = parse(ALL[name], text)
    assert parse(ALL[name], *cut(text, places)) == (content, calls)
    if not calls:
        assert content == text
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)


MALFORMED = {
    "hermes": [
        '<tool_call>{"name": "add", "arguments": {"a": "\\d+"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1',
        '<tool_call>{"name": "add", "arguments": ""}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call></tool_call>",
        "  <tool_call> I would call add(1).\n",
        '<tool_call>{"name": "add", "arguments": {}} and more</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        "<tool_call",
        "a <tool_call> b <tool_call> c\n",
    ],
    "llama3": [
        '{"name": "add"}',
        '{"answer": 42, "name": "add", "parameters": {}}',
        '{"name": "add", "parameters": {"a": 1}',
        '<|python_tag|>print("x")',
        'Sure: {"name": "add", "parameters": {}}',
        "{}",
    ],
    "mistral": [
        '[TOOL_CALLS] [{"name": "add"',
        "[TOOL_CALLS] []",
        '[TOOL_CALLS] ["add"]',
        "[TOOL_CALLS]add[ARGS]",
        '[TOOL_CALLS]add[ARGS]{"a": }',
        "[TOOL_CALLS]add and so on",
        "[TOOL_CALLS]",
    ],
    "qwen-xml": [
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>",
        "<tool_call>\n<function=add>\nno parameter\n</function>\n</tool_call>",
        "<tool_call>\n<function=add",
        "<function=add> is how it is written",
    ],
    "glm": [
        "<tool_call>add\n<arg_key>a</arg_key>\n</tool_call>",
        "<tool_call>add\n<arg_key>a",
        "<tool_call>",
    ],
    "pythonic": [
        "[add(1)]",
        "[add(a=x)]",
        "[add(a=1]",
        "[add(**{})]",
        "[add(a=b'1')]",
        "[add(a={1: 2})]",
        "[add(a={1, 2})]",
        "[add(a=1e999)]",
        "[1, 2]",
        "[a link](https://example.com) and (text)",
        "[add(a=" + "(" * 5000 + ")" * 5000 + ")]",
    ],
    "harmony": [
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{",
        "send it to=functions.add please",
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜>none",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{}<｜tool▁call▁end｜>",
    ],
    "granite": ['<|tool_call|>{"name": "add"}', "<|tool_call|>[1]"],
    "functionary": ["<function=add>1</function>", "<function=add>{}<function"],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name, texts in MALFORMED.items() for text in texts],
    ids=[f"{name}-{i}" for name, texts in MALFORMED.items() for i in range(len(texts))],
)
def test_a_malformed_call_is_text_to_the_letter(name: str, text: str) -> None:
    assert parse(ALL[name], text) == (text, [])
    if len(text) < 1000:
        assert parse(ALL[name], *text) == (text, [])


def test_a_call_after_a_malformed_one_is_found() -> None:
    bad = "<tool_call> I would call add.\n"
    text, calls = parse(
        ALL["hermes"], bad + '<tool_call>{"name": "add", "arguments": {}}</tool_call> Done.'
    )
    assert text == bad.rstrip() + " Done."
    assert [call.name for call in calls] == ["add"]


def test_a_tool_that_was_not_offered_is_not_called() -> None:
    reply = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'
    assert parse(ALL["hermes"], reply, tools=TOOLS) == (reply, [])
    assert parse(ALL["hermes"], reply, tools=[{"name": "rm"}])[1][0].name == "rm"


def test_a_call_without_its_end_is_taken_at_the_end() -> None:
    one = '<tool_call>{"name": "add", "arguments": {"a": 1}}'
    assert len(parse(ALL["hermes"], one)[1]) == 1
    assert len(parse(ALL["hermes"], f"{one}\n{one}")[1]) == 2


def test_line_breaks_within_strings_are_taken() -> None:
    reply = '<tool_call>{"name": "add", "arguments": {"code": "a\n\tb"}}</tool_call>'
    assert json.loads(parse(ALL["hermes"], reply)[1][0].arguments) == {"code": "a\n\tb"}


def test_arguments_can_be_sent_as_utf8() -> None:
    reply = '<tool_call>{"name": "add", "arguments": {"a": "\\ud800 é"}}</tool_call>'
    arguments = parse(ALL["hermes"], reply)[1][0].arguments
    arguments.encode("utf-8")
    assert json.loads(arguments) == {"a": "\ud800 é"}


def test_types_come_from_the_schema_where_the_format_has_none() -> None:
    properties = {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "yes": {"type": "boolean"},
        "list": {"type": "array"},
    }
    tool = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    values = {"text": "5", "number": "5", "yes": "True", "list": '["5"]', "free": "5", "q": '"5"'}
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    reply = f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"
    call = parse(ALL["qwen-xml"], reply, tools=[{"type": "function", "function": tool}])[1][0]
    known = {"text": "5", "number": 5, "yes": True, "list": ["5"]}
    assert json.loads(call.arguments) == known | {"free": 5, "q": '"5"'}


def test_content_is_told_at_once_and_a_call_when_it_is_whole() -> None:
    parser = ALL["hermes"].parser()
    assert parser.feed("Let me ") == [Content("Let me")]
    assert parser.feed("see <b>") == [Content(" see <b>")]
    assert parser.feed("\n<tool") == []
    assert parser.feed('_call>{"name": "add", "arguments": {}}</tool_') == []
    call, arguments = parser.feed("call>")
    assert arguments == CallArguments(0, "{}")
    assert isinstance(call, CallStart)
    assert call.name == "add"
    assert call.id.startswith("call_")
    assert len(call.id) == len("call_") + 24
    assert parser.feed("\n") == []
    assert parser.finish() == []


def test_a_long_call_in_small_pieces_takes_linear_time() -> None:
    text = json.dumps({"name": "add", "arguments": {"a": '"}{' * 30_000}})
    parser = ALL["hermes"].parser()
    events = [event for piece in f"<tool_call>{text}</tool_call>" for event in parser.feed(piece)]
    assert len(json.loads(events[1].text)["a"]) == 90_000


@pytest.mark.parametrize(("name", "shape"), [("hermes", r"call_\w{24}"), ("mistral", r"\w{9}")])
def test_ids_have_the_form_that_clients_and_templates_want(name: str, shape: str) -> None:
    ids = {ALL[name].new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(shape, one, re.ASCII) for one in ids)
