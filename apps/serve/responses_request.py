"""A request to /v1/responses, read into the form that all chat interfaces share."""

from dataclasses import dataclass
from typing import Any

from .chat_request import (
    HARMLESS,
    ChatRequest,
    Message,
    Tools,
    as_function,
    check_tools,
    parse_arguments,
    read_content,
)
from .fields import Fields, objects
from .prompts import MAX_TOP_LOGPROBS, check_sampling, read_own_sampling

_LOGPROBS = "message.output_text.logprobs"
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


@dataclass(frozen=True)
class ResponseRequest:
    """The chat request, and what the response repeats of the request."""

    chat: ChatRequest
    echo: dict[str, Any]


def read_response(fields: Fields) -> ResponseRequest:
    """Raises BadField for whatever is wrong or not supported."""
    echo = {
        name: fields.peek(name)
        for name in ("instructions", "metadata", "tools", "tool_choice", "reasoning", "text")
    }
    model = fields.text("model", required=True)
    instructions = fields.text("instructions")
    conversation = [{"role": "system", "content": instructions}] if instructions else []
    conversation += _read_input(fields)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    logprobs = _read_include(fields)
    if top and not logprobs:
        raise fields.bad("top_logprobs", f"needs {_LOGPROBS!r} in include")
    chat = ChatRequest(
        model=model,
        messages=conversation,
        given=_read_given(fields),
        tools=_read_tools(fields),
        format=_read_text(fields),
        template=_read_reasoning(fields),
        top_logprobs=(top or 0) if logprobs else None,
        stream=fields.flag("stream"),
    )
    options = fields.object("stream_options")
    if options is not None:
        options.harmless({"include_obfuscation": bool})
        options.done()
    _refuse_state(fields)
    fields.harmless(HARMLESS)
    fields.done()
    return ResponseRequest(chat, echo)


def _refuse_state(fields: Fields) -> None:
    """Nothing is kept between requests."""
    stateless = "is not supported here: the server keeps no conversations; send all of it as input"
    for name in ("previous_response_id", "conversation"):
        fields.refuse(name, why=stateless)
    fields.refuse("background", False)
    fields.refuse("truncation", "disabled")
    for name in ("prompt", "max_tool_calls", "context_management"):
        fields.refuse(name)


def _read_given(fields: Fields) -> dict[str, Any]:
    sampling = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "max_tokens": fields.integer("max_output_tokens", 1, 2**31),
        "seed": fields.integer("seed", 0, 2**64 - 1),
    }
    return check_sampling(fields, sampling | read_own_sampling(fields))


def _read_include(fields: Fields) -> bool:
    """Whether logprobs are asked for."""
    include = fields.items("include") or []
    for name in include:
        if name not in (_LOGPROBS, "reasoning.encrypted_content"):
            raise fields.bad("include", f"has {name!r:.60}, which is not supported here")
    return _LOGPROBS in include


def _read_text(fields: Fields) -> dict[str, Any] | None:
    text = fields.object("text")
    if text is None:
        return None
    text.refuse("verbosity", "medium")
    wanted = text.object("format")
    text.done()
    if wanted is None:
        return None
    kind = wanted.choice("type", ("text", "json_object", "json_schema"), "text")
    form = None
    if kind == "json_object":
        form = {"json_object": True}
    elif kind == "json_schema":
        schema = wanted.mapping("schema")
        if schema is None:
            raise wanted.bad("schema", "is missing")
        form = {"json_schema": schema}
        wanted.harmless({"name": str, "description": str})
        wanted.flag("strict", None)
    wanted.done()
    return form


def _read_reasoning(fields: Fields) -> dict[str, Any]:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return {}
    effort = reasoning.choice("effort", _EFFORTS)
    for name in ("summary", "generate_summary"):
        reasoning.refuse(name, "auto", why="is not supported here; the reasoning comes whole")
    reasoning.done()
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _read_input(fields: Fields) -> list[Message]:
    value = fields.take("input", required=True)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise fields.bad("input", "expected a string or a list of items")
    conversation: list[Message] = []
    for item in objects(value, fields.name("input")):
        _read_item(item, conversation)
    for message in conversation:
        message.setdefault("content", "")
    return conversation


def _read_item(item: Fields, conversation: list[Message]) -> None:
    """Add an item: a message, a call, its output, or what the model thought before."""
    types = ("message", "function_call", "function_call_output", "reasoning")
    kind = item.choice("type", types, "message")
    item.ignore("id", "status")
    if kind == "message":
        role = item.choice("role", ("system", "developer", "user", "assistant"))
        if role is None:
            raise item.bad("role", "is missing")
        content = read_content(item, required=True)
        item.ignore("phase")
        if role == "assistant":
            _assistant(conversation)["content"] = content
        else:
            role = "system" if role == "developer" else role
            conversation.append({"role": role, "content": content})
    elif kind == "function_call":
        function = {
            "name": item.text("name", required=True),
            "arguments": parse_arguments(item.text("arguments", "{}")),
        }
        call = {"id": item.text("call_id", required=True), "type": "function"}
        _assistant(conversation, call=True).setdefault("tool_calls", []).append(
            {**call, "function": function}
        )
    elif kind == "function_call_output":
        conversation.append(
            {
                "role": "tool",
                "tool_call_id": item.text("call_id", required=True),
                "content": _read_output(item),
            }
        )
    else:
        _read_thought(item, conversation)
    item.done()


def _assistant(conversation: list[Message], call: bool = False) -> Message:
    """The assistant's turn under way; a new one unless only its thought, or a call, is known."""
    if conversation and conversation[-1]["role"] == "assistant":
        last = conversation[-1]
        if call or ("content" not in last and "tool_calls" not in last):
            return last
    conversation.append({"role": "assistant"})
    return conversation[-1]


def _read_output(item: Fields) -> str:
    output = item.take("output", required=True)
    if isinstance(output, str):
        return output
    return read_content(Fields({"content": output}, item.path), required=True)


def _read_thought(item: Fields, conversation: list[Message]) -> None:
    item.ignore("encrypted_content")
    text = ""
    for part in objects(item.items("content") or [], item.name("content")):
        part.choice("type", ("reasoning_text",))
        text += part.text("text", required=True)
        part.done()
    item.refuse("summary", [])
    if text:
        conversation.append({"role": "assistant", "reasoning_content": text})


def _read_tools(fields: Fields) -> Tools:
    functions = []
    for tool in objects(fields.items("tools") or [], fields.name("tools")):
        if tool.choice("type", ("function",)) is None:
            raise tool.bad("type", "is missing")
        functions.append(as_function(tool))
    parallel = fields.flag("parallel_tool_calls", True)
    if not fields.has("tool_choice"):
        return check_tools(fields, Tools(functions, parallel=parallel))
    value = fields.take("tool_choice")
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise fields.bad("tool_choice", f"is {value!r:.60}; supported: auto, none, required")
        return check_tools(fields, Tools(functions, value, parallel=parallel))
    chosen = Fields(value, fields.name("tool_choice"))
    chosen.choice("type", ("function",))
    name = chosen.text("name", required=True)
    chosen.done()
    return check_tools(fields, Tools(functions, "function", name, parallel))
