"""Long calls that are told while they come: the pieces make up the call, or are no JSON."""

import json
from itertools import count
from typing import Any

import jiter
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pippin.apps.tools import CallArguments, CallStart, Content, ToolFormat, detect, early
from pippin.apps.tools.formats import FORMATS
from support.tool_formats import CALLS, MARKS, cut, tool_template

EARLY = {format.name: format for format in FORMATS if format.opening}
KINDS = ("hermes", "llama3", "mistral, second", "mistral, third", "functionary", "harmony")
KINDS += ("deepseek", "deepseek, text")
LONG = 'a "quoted" {text} with \\ and \t, é😀 ] }' * 10  # longer than what is held back
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=5,
)  # fmt: skip


def told(format: ToolFormat, *pieces: str) -> tuple[list[tuple], list[int]]:
    """All that is told, with neighbours joined; and by which piece each call is begun."""
    numbers = count()
    parser = format.parser(early=True, new_id=lambda: str(next(numbers)))
    joined: list[tuple[Any, ...]] = []
    begun = []
    for place, piece in enumerate([*pieces, None]):
        for event in parser.finish() if piece is None else parser.feed(piece):
            match event:
                case Content(text):
                    key = ("text", None)
                case CallStart(index, call_id, name):
                    key, text = ("call", index, call_id, name), ""
                    begun.append(place)
                case CallArguments(index, text):
                    assert text
                    key = ("arguments", index)
            if joined and joined[-1][0] == key:
                joined[-1] = (key, joined[-1][1] + text)
            else:
                joined.append((key, text))
    return joined, begun


def arguments(events: list[tuple]) -> list[str]:
    return [text for key, text in events if key[0] == "arguments"]


@pytest.mark.parametrize("kind", KINDS)
@given(values=st.dictionaries(st.text("abc", max_size=3), VALUES, max_size=3), data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_pieces_are_the_call(kind: str, values: dict[str, Any], data: st.DataObject) -> None:
    template = tool_template(kind)
    format = detect(template)
    given_ = {"long": LONG, **values}
    call = {"id": "abcdefghi", "function": {"name": "add", "arguments": given_}}
    turn = {"role": "assistant", "content": "So:", "tool_calls": [call]}
    if format.bare:
        turn["content"] = ""
    whole = template.render(format.messages([turn]), add_generation_prompt=False)
    reply = whole.partition("<assistant>")[2].removesuffix("<|end|>\n")
    events, begun = told(format, *reply)
    assert [json.loads(text) for text in arguments(events)] == [given_]
    assert begun[0] < len(reply) - len("\\t, é😀 ] }")  # while it came
    assert [key[0] for key, _ in events] == ["text", "call", "arguments"][bool(format.bare) :]
    places = data.draw(st.lists(st.integers(0, 10**6), max_size=6))
    assert told(format, *cut(reply, places))[0] == events
    # broken off anywhere, it has no arguments that look complete
    end = data.draw(st.integers(0, reply.rindex("}")))
    broken, _ = told(format, *reply[:end])
    assert told(format, reply[:end])[0] == broken
    for text in arguments(broken):
        with pytest.raises(ValueError, match="line 1"):
            json.loads(text)


@pytest.mark.parametrize("name", EARLY)
@given(
    parts=st.lists(
        st.sampled_from([*MARKS, '{"name": "add", "arguments": {', "-1.5", "null", "["])
    ),
    places=st.lists(st.integers(0, 10**6), max_size=8),
)
@settings(max_examples=100, deadline=None)
@example(parts=["<tool_call>", '{"name": "add", "arguments": {', "}", "</function>"], places=[])
@example(parts=["[TOOL_CALLS]add[ARGS]", '{"a": [', "null", "[", "-1.5", "]]", "}"], places=[])
def test_any_text_may_be_told_early(name, parts, places) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(early, "HELD", 1)
        events, _ = told(EARLY[name], *text)
        assert told(EARLY[name], *cut(text, places))[0] == events
    if not any(key[0] == "call" for key, _ in events):
        assert "".join(said for _, said in events) == text
    for said in arguments(events):
        # what clients do that show a call while it comes
        assert isinstance(jiter.from_json(said.encode(), partial_mode="trailing-strings"), dict)


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        (f'{{"a": "{"x" * 300}', '\\d"}'),
        (f'{{"a": "{"x" * 300}"', ' "b": 1}'),
        (f'{{"a": "{"x" * 300}", "b": ', "NaN}"),
        (f'{{"a": "{"x" * 300}",', "}"),
        (f'{{"a": ["{"x" * 300}", [],', "}]}"),
    ],
    ids=["escape", "comma", "number", "key", "bracket"],
)
def test_of_a_call_that_breaks_off_the_rest_is_text(before: str, rest: str) -> None:
    head, tail = '<tool_call>{"name": "add", "arguments": ', "}</tool_call> And so on."
    events, _ = told(EARLY["hermes"], *f"{head}{before}{rest}{tail}")
    said = "".join(text for key, text in events if key[0] == "text")
    (made,) = arguments(events)
    assert made + said == before + rest + tail
    assert made.rstrip() == before.rstrip()


def test_a_short_call_is_told_whole_and_a_malformed_one_not_at_all() -> None:
    head = '<tool_call>{"name": "add", "arguments": '
    events, (begun,) = told(EARLY["hermes"], *f'{head}{{"a": 1}}}}</tool_call>')
    assert arguments(events) == ['{"a": 1}']
    assert begun == len(f'{head}{{"a": 1}}}}</tool_call>') - 1
    bad = f'{head}{{"a": 1,}}}}</tool_call>'
    assert told(EARLY["hermes"], *bad) == ([(("text", None), bad)], [])


def test_a_tool_that_was_not_offered_is_not_begun() -> None:
    parser = EARLY["hermes"].parser([{"name": "add"}], early=True)
    reply = f'<tool_call>{{"name": "rm", "arguments": {{"a": "{"x" * 400}"}}}}</tool_call>'
    events = [event for char in reply for event in parser.feed(char)] + parser.finish()
    assert all(isinstance(event, Content) for event in events)
    assert "".join(event.text for event in events) == reply


def test_formats_without_json_are_told_whole() -> None:
    (pythonic,) = [format for format in FORMATS if format.name == "pythonic"]
    events, begun = told(pythonic, *f'[add(a="{"x" * 400}")]')
    assert json.loads(arguments(events)[0]) == {"a": "x" * 400}
    assert begun == [len(f'[add(a="{"x" * 400}")]') - 1]


def test_a_long_call_in_small_pieces_is_told_in_linear_time() -> None:
    text = json.dumps({"name": "add", "arguments": {"a": '"}{' * 30_000}})
    events, _ = told(EARLY["hermes"], *f"<tool_call>{text}</tool_call>")
    assert json.loads(arguments(events)[0]) == {"a": '"}{' * 30_000}


def test_every_format_of_json_is_among_the_tested_ones() -> None:
    assert {kind.partition(",")[0] for kind in KINDS} == set(EARLY) <= set(CALLS)
