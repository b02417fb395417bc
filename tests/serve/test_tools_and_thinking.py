"""Calls of tools and thinking, through each interface's own client."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from support.byte_tokenizer import VOCAB
from support.fake_engine import hashed
from support.serving import fake_model, says, serving, with_template

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "clock"}},
]
FLAT = [{"type": "function", **WEATHER}]
ANTHROPIC = [{"name": "weather", "description": "w", "input_schema": PARAMETERS}]
TURN = [{"role": "user", "content": "Weather in Paris?"}]
ARGUMENTS = {"city": "Paris", "days": 2}
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(byte_tokenizer, tmp_path_factory.mktemp("tools") / "tokenizer")


@pytest.fixture
def answering(tokenizer: Path) -> Iterator[Any]:
    """answering(text) gives both clients of a server whose model says `text`."""
    with ExitStack() as stack:

        def clients(text: str | None) -> tuple[OpenAI, Anthropic]:
            model = hashed(VOCAB) if text is None else says(text)
            served = stack.enter_context(serving(fake_model(tokenizer, model)))
            options = {"api_key": "x", "max_retries": 0}
            return (
                OpenAI(base_url=f"{served.url}/v1", **options),
                Anthropic(base_url=served.url, **options),
            )

        yield clients


def test_calls_beside_text(answering) -> None:
    client, _ = answering(f"Let me see.\n{CALL}\n{CLOCK}")
    options = {"model": "tiny", "messages": TURN, "tools": TOOLS}
    (choice,) = client.chat.completions.create(**options).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    first, second = choice.message.tool_calls
    assert (first.function.name, json.loads(first.function.arguments)) == ("weather", ARGUMENTS)
    assert (second.function.name, json.loads(second.function.arguments)) == ("clock", {})
    assert first.id.startswith("call_")
    assert first.id != second.id


def test_streamed_calls(answering) -> None:
    client, _ = answering(f"Let me see.\n{CALL}\n{CLOCK}")
    text, calls, finish = "", {}, None
    for chunk in client.chat.completions.create(
        model="tiny", messages=TURN, tools=TOOLS, stream=True
    ):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for delta in choice.delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"arguments": ""})
            call["arguments"] += delta.function.arguments or ""
            call |= {"id": delta.id} if delta.id else {}
            call |= {"name": delta.function.name} if delta.function.name else {}
        finish = choice.finish_reason or finish
    assert (text, finish) == ("Let me see.", "tool_calls")
    assert [calls[i]["name"] for i in (0, 1)] == ["weather", "clock"]
    assert [json.loads(calls[i]["arguments"]) for i in (0, 1)] == [ARGUMENTS, {}]


LONG = {"city": "Paris", "note": 'A "note" é\n' * 24}
LONG_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(LONG)}}}\n</tool_call>'


def test_long_arguments_are_streamed_while_they_come(answering) -> None:
    client, anthropic = answering(LONG_CALL)
    chunks = client.chat.completions.create(model="tiny", messages=TURN, tools=TOOLS, stream=True)
    choices = [chunk.choices[0] for chunk in chunks]
    deltas = [delta for choice in choices for delta in choice.delta.tool_calls or []]
    assert deltas[0].id
    assert deltas[0].function.name == "weather"
    assert len(deltas) > 100
    assert json.loads("".join(delta.function.arguments for delta in deltas)) == LONG
    assert choices[-1].finish_reason == "tool_calls"
    options = {"model": "tiny", "messages": TURN, "tools": ANTHROPIC, "max_tokens": 900}
    with anthropic.messages.stream(**options) as stream:
        seen = [event.snapshot for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert len(seen) > 100
    assert message.content[0].input == LONG
    with client.responses.stream(model="tiny", input="Weather?", tools=FLAT) as events:
        kinds = [event.type for event in events]
        (call,) = events.get_final_response().output
    assert kinds.count("response.function_call_arguments.delta") > 100
    assert json.loads(call.arguments) == LONG


@pytest.mark.parametrize("cut", [False, True], ids=["malformed", "cut-off"])
def test_a_streamed_call_that_breaks_off_is_not_to_be_made(answering, cut: bool) -> None:
    client, anthropic = answering(LONG_CALL.replace("}}", ", }}"))
    longest = 400 if cut else 900
    options = {"model": "tiny", "messages": TURN, "max_tokens": longest}
    chunks = client.chat.completions.create(**options, tools=TOOLS, stream=True)
    choices = [chunk.choices[0] for chunk in chunks]
    deltas = [delta for choice in choices for delta in choice.delta.tool_calls or []]
    with pytest.raises(ValueError, match="line 1"):
        json.loads("".join(delta.function.arguments for delta in deltas))
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == ("" if cut else "}}\n</tool_call>")
    assert choices[-1].finish_reason == ("length" if cut else "stop")
    with anthropic.messages.stream(**options, tools=ANTHROPIC) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == ("max_tokens" if cut else "end_turn")
    with client.responses.stream(
        model="tiny", input="Weather?", tools=FLAT, max_output_tokens=longest
    ) as events:
        call, *rest = list(events)[-1].response.output
    assert (call.type, call.status) == ("function_call", "incomplete")
    assert [item.type for item in rest] == ([] if cut else ["message"])
    whole = client.chat.completions.create(**options, tools=TOOLS).choices[0].message
    assert whole.tool_calls is None
    assert whole.content == LONG_CALL.replace("}}", ", }}")[:longest]


def test_the_helper_that_gathers_a_stream(answering) -> None:
    client, _ = answering(CALL)
    with client.chat.completions.stream(model="tiny", messages=TURN, tools=TOOLS) as stream:
        (choice,) = stream.get_final_completion().choices
    assert choice.message.tool_calls[0].function.name == "weather"
    assert not choice.message.content


def test_one_call_alone(answering) -> None:
    client, anthropic = answering(f"{CALL}\n{CLOCK}")
    options = {"model": "tiny", "messages": TURN}
    done = client.chat.completions.create(**options, tools=TOOLS, parallel_tool_calls=False)
    assert len(done.choices[0].message.tool_calls) == 1
    assert done.choices[0].finish_reason == "tool_calls"
    tools = [*ANTHROPIC, {"name": "clock", "input_schema": {"type": "object"}}]
    for disabled, count in ((True, 1), (False, 2)):
        choice = {"type": "auto", "disable_parallel_tool_use": disabled}
        message = anthropic.messages.create(
            **options, tools=tools, max_tokens=500, tool_choice=choice
        )
        assert [block.type for block in message.content] == ["tool_use"] * count


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "\n</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        "<tool_call>",
        r'<tool_call>{"name": "weather", "arguments": {"city": "\d+"}}</tool_call>',
    ],
    ids=["cut", "unknown", "bare", "escape"],
)
def test_what_is_no_call_is_text(answering, text: str) -> None:
    client, anthropic = answering(text)
    (choice,) = client.chat.completions.create(model="tiny", messages=TURN, tools=TOOLS).choices
    assert (choice.message.content, choice.message.tool_calls) == (text, None)
    assert choice.finish_reason == "stop"
    message = anthropic.messages.create(
        model="tiny", messages=TURN, tools=ANTHROPIC, max_tokens=200
    )
    assert [block.text for block in message.content] == [text]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_is_required_is_one(answering, stream: bool) -> None:
    """A model of noise is held to the function's schema."""
    client, anthropic = answering(None)
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        with client.chat.completions.stream(
            model="tiny", messages=TURN, tools=TOOLS[:1], tool_choice=choice, seed=1
        ) as gathered:
            (made,) = gathered.get_final_completion().choices
        assert made.finish_reason == "tool_calls"
        arguments = json.loads(made.message.tool_calls[0].function.arguments)
        assert set(arguments) == {"city", "days"}
    options = {"model": "tiny", "messages": TURN, "tools": ANTHROPIC, "max_tokens": 300}
    options["tool_choice"] = {"type": "tool", "name": "weather"}
    if stream:
        with anthropic.messages.stream(**options) as events:
            message = events.get_final_message()
    else:
        message = anthropic.messages.create(**options)
    assert message.stop_reason == "tool_use"
    assert message.content[0].input["city"] in ("Paris", "Rome")


def test_each_functions_references_are_its_own(answering) -> None:
    """Schemas with $defs, as pydantic writes them."""
    client, _ = answering(None)

    def tool(name: str, city: str) -> dict[str, Any]:
        defs = {"City": {"const": city}}
        properties = {"city": {"$ref": "#/$defs/City"}}
        schema = {"type": "object", "properties": properties, "required": ["city"], "$defs": defs}
        strict = {**schema, "additionalProperties": False}
        return {"type": "function", "function": {"name": name, "parameters": strict}}

    cities = {"weather": "Paris", "clock": "Rome"}
    tools = [tool(name, city) for name, city in cities.items()]
    seen = set()
    for seed in range(8):
        done = client.chat.completions.create(
            model="tiny", messages=TURN, tools=tools, tool_choice="required", seed=seed,
            temperature=1,
        )  # fmt: skip
        made = done.choices[0].message.tool_calls[0].function
        assert json.loads(made.arguments) == {"city": cities[made.name]}
        seen.add(made.name)
    assert seen == set(cities)


def test_results_go_back_to_the_template(answering) -> None:
    client, anthropic = answering("It rains.")
    call = {"id": "c1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    messages = [
        *TURN,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    ours = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS[:1])
    assert ours.choices[0].message.content == "It rains."
    blocks = [
        *TURN,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": ARGUMENTS}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}],
        },
    ]
    tools = [{**ANTHROPIC[0], "description": "The weather."}]
    theirs = anthropic.messages.create(model="tiny", messages=blocks, tools=tools, max_tokens=100)
    items = [
        {"role": "user", "content": TURN[0]["content"]},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "weather",
            "arguments": json.dumps(ARGUMENTS),
        },
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    newer = client.responses.create(model="tiny", input=items, tools=FLAT)
    assert newer.output_text == "It rains."
    counted = theirs.usage.input_tokens + theirs.usage.cache_read_input_tokens
    assert ours.usage.prompt_tokens == counted == newer.usage.input_tokens


def test_anthropics_events_of_a_call(answering) -> None:
    _, client = answering(f"Let me see.\n{CALL}")
    with client.messages.stream(
        model="tiny", messages=TURN, tools=ANTHROPIC, max_tokens=200
    ) as stream:
        kinds = [event.type for event in stream if event.type.startswith("content_block_st")]
        message = stream.get_final_message()
    assert kinds == ["content_block_start", "content_block_stop"] * 2
    text, call = message.content
    assert (text.text, call.name, call.input) == ("Let me see.", "weather", ARGUMENTS)
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_calls_in_responses(answering, stream: bool) -> None:
    client, _ = answering(f"Let me see.\n{CALL}")
    options = {"model": "tiny", "input": "Weather?", "tools": FLAT}
    if stream:
        with client.responses.stream(**options) as events:
            done = events.get_final_response()
    else:
        done = client.responses.create(**options)
    message, call = done.output
    assert message.content[0].text == "Let me see."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call", "weather", ARGUMENTS
    )  # fmt: skip


def test_thinking_is_told_apart(answering) -> None:
    client, anthropic = answering(f"<think>\nRain is likely.\n</think>\n\nIt may rain. {CALL}")
    options = {"model": "tiny", "messages": TURN, "tools": TOOLS}
    done = client.chat.completions.create(**options)
    message = done.choices[0].message
    assert message.content == "It may rain."
    assert message.reasoning_content == "Rain is likely."
    assert len(message.tool_calls) == 1
    assert 0 < done.usage.completion_tokens_details.reasoning_tokens < done.usage.completion_tokens
    chunks = client.chat.completions.create(**options, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Rain is likely."
    assert "".join(delta.content or "" for delta in deltas) == "It may rain."
    with anthropic.messages.stream(
        model="tiny", messages=TURN, tools=ANTHROPIC, max_tokens=500
    ) as stream:
        thought, text, call = stream.get_final_message().content
    assert (thought.thinking, text.text, call.name) == (
        "Rain is likely.", "It may rain.", "weather"
    )  # fmt: skip
    newer = client.responses.create(model="tiny", input="Weather?", tools=FLAT)
    assert [item.type for item in newer.output] == ["reasoning", "message", "function_call"]


@contextmanager
def refused(param: str) -> Iterator[None]:
    with pytest.raises(openai.BadRequestError) as raised:
        yield
    assert raised.value.param == param


def test_tools_that_cannot_be_used_are_refused(answering, byte_tokenizer: Path) -> None:
    client, _ = answering("x")
    options = {"model": "tiny", "messages": TURN}
    twice = [TOOLS[0], TOOLS[0]]
    other = {"type": "function", "function": {"name": "other"}}
    with refused("tools"):
        client.chat.completions.create(**options, tools=twice)
    with refused("tool_choice"):
        client.chat.completions.create(**options, tools=TOOLS, tool_choice=other)
    with refused("tool_choice"):
        client.chat.completions.create(**options, tool_choice="required")
    for choice in ("auto", "required"):
        with refused("response_format"):
            client.chat.completions.create(
                **options,
                tools=TOOLS,
                tool_choice=choice,
                response_format={"type": "json_object"},
            )
    text = {"name": "f", "parameters": {"type": "string"}}
    with refused("tools[0].function.parameters.type"):
        client.chat.completions.create(**options, tools=[{"type": "function", "function": text}])
    with serving(fake_model(byte_tokenizer)) as served:
        plain = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        with refused("tools"):
            plain.chat.completions.create(**options, tools=TOOLS)
