"""A request to /v1/messages, read into the form that all chat interfaces share."""

from typing import Any

from .chat_request import ChatRequest, Message, Tools, as_function, check_tools
from .fields import Fields, objects
from .prompts import check_sampling, read_own_sampling, read_stop

# Caching needs no marks here: every shared beginning is reused.
_MARKS = ("cache_control",)


def read_message_request(fields: Fields) -> ChatRequest:
    """Raises BadField for whatever is wrong or not supported."""
    longest = fields.integer("max_tokens", 1, 2**31, required=True)
    sampling = {
        "temperature": fields.number("temperature", 0, 1),
        "top_p": fields.number("top_p", 0, 1),
        "stop": read_stop(fields, "stop_sequences"),
        "seed": fields.integer("seed", 0, 2**64 - 1),
    } | read_own_sampling(fields)
    given = {"max_tokens": longest, **check_sampling(fields, sampling)}
    stream = fields.flag("stream")
    fields.harmless({"metadata": dict, "service_tier": str})
    return _read(fields, given, _read_output(fields), stream)


def read_count(fields: Fields) -> ChatRequest:
    """A request to /v1/messages/count_tokens."""
    return _read(fields, {}, None, False)


def _read(
    fields: Fields, given: dict[str, Any], form: dict[str, Any] | None, stream: bool
) -> ChatRequest:
    model = fields.text("model", required=True)
    conversation = _read_system(fields) + _read_messages(fields)
    tools, template = _read_tools(fields), _read_thinking(fields)
    fields.done()
    return ChatRequest(
        model=model,
        messages=conversation,
        given=given,
        tools=tools,
        format=form,
        template=template,
        stream=stream,
    )


def _read_output(fields: Fields) -> dict[str, Any] | None:
    """`output_config`: JSON that a schema allows."""
    config = fields.object("output_config")
    if config is None:
        return None
    wanted = config.object("format")
    config.done()
    if wanted is None:
        return None
    wanted.choice("type", ("json_schema",))
    schema = wanted.mapping("schema")
    if schema is None:
        raise wanted.bad("schema", "is missing")
    wanted.done()
    return {"json_schema": schema}


def _read_thinking(fields: Fields) -> dict[str, Any]:
    """Whether the template asks the model to think."""
    thinking = fields.object("thinking")
    if thinking is None:
        return {}
    kind = thinking.choice("type", ("enabled", "disabled", "adaptive"))
    if kind is None:
        raise thinking.bad("type", "is missing")
    if thinking.take("budget_tokens") is not None:
        raise thinking.bad("budget_tokens", "is not supported here; max_tokens bounds the reply")
    thinking.done()
    return {"enable_thinking": kind != "disabled"}


def _read_system(fields: Fields) -> list[Message]:
    value = fields.take("system")
    if value is None:
        return []
    text = value if isinstance(value, str) else _texts(value, fields, "system")
    return [{"role": "system", "content": text}] if text else []


def _read_messages(fields: Fields) -> list[Message]:
    values = fields.items("messages", required=True)
    if not values:
        raise fields.bad("messages", "is empty; give at least one message")
    conversation: list[Message] = []
    role = None
    for item in objects(values, fields.name("messages")):
        role = item.choice("role", ("user", "assistant"))
        if role is None:
            raise item.bad("role", "is missing")
        content = item.take("content", required=True)
        item.done()
        if isinstance(content, str):
            conversation.append({"role": role, "content": content})
        elif isinstance(content, list):
            blocks = objects(content, item.name("content"))
            conversation += _user(blocks) if role == "user" else [_assistant(blocks)]
        else:
            raise item.bad("content", "expected a string or a list of blocks")
    if role == "assistant":
        raise fields.bad(
            "messages", "end with the assistant's turn; going on with it is not supported here"
        )
    return conversation


def _user(blocks: list[Fields]) -> list[Message]:
    """A turn's tool results, each a message of its own, and its texts."""
    results: list[Message] = []
    text = ""
    for block in blocks:
        kind = block.choice("type", ("text", "tool_result"))
        if kind == "text":
            text += block.text("text", required=True)
            block.refuse("citations", [])
        elif kind == "tool_result":
            results.append(_result(block))
        else:
            raise block.bad("type", "is missing")
        block.ignore(*_MARKS)
        block.done()
    said = [{"role": "user", "content": text}] if text or not results else []
    return results + said


def _result(block: Fields) -> Message:
    call = block.text("tool_use_id", required=True)
    content = block.take("content")
    if content is not None and not isinstance(content, str):
        content = _texts(content, block, "content")
    if block.flag("is_error") and content is not None:
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": call, "content": content or ""}


def _assistant(blocks: list[Fields]) -> Message:
    text, thought = "", ""
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.choice("type", ("text", "thinking", "tool_use"))
        if kind == "text":
            text += block.text("text", required=True)
            block.refuse("citations", [])
        elif kind == "thinking":
            thought += block.text("thinking", required=True)
            block.ignore("signature")
        elif kind == "tool_use":
            calls.append(_call(block))
        else:
            raise block.bad("type", "is missing")
        block.ignore(*_MARKS)
        block.done()
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Fields) -> dict[str, Any]:
    name, arguments = block.text("name", required=True), block.mapping("input") or {}
    function = {"name": name, "arguments": arguments}
    block.ignore("caller")
    return {"id": block.text("id", required=True), "type": "function", "function": function}


def _texts(value: Any, fields: Fields, name: str) -> str:
    """The texts of a list of text blocks, joined."""
    if not isinstance(value, list):
        raise fields.bad(name, "expected a string or a list of text blocks")
    found = ""
    for block in objects(value, fields.name(name)):
        if block.choice("type", ("text",)) is None:
            raise block.bad("type", "is missing")
        found += block.text("text", required=True)
        block.refuse("citations", [])
        block.ignore(*_MARKS)
        block.done()
    return found


def _read_tools(fields: Fields) -> Tools:
    values = fields.items("tools") or []
    functions = [_read_tool(tool) for tool in objects(values, fields.name("tools"))]
    chosen = fields.object("tool_choice")
    if chosen is None:
        return check_tools(fields, Tools(functions))
    kind = chosen.choice("type", ("auto", "any", "tool", "none"))
    if kind is None:
        raise chosen.bad("type", "is missing")
    name = chosen.text("name", required=True) if kind == "tool" else None
    parallel = not chosen.flag("disable_parallel_tool_use")
    chosen.done()
    choice = {"any": "required", "tool": "function"}.get(kind, kind)
    return check_tools(fields, Tools(functions, choice, name, parallel))


def _read_tool(fields: Fields) -> dict[str, Any]:
    fields.choice("type", ("custom",))
    fields.ignore(*_MARKS, "eager_input_streaming")
    return as_function(fields, "input_schema")
