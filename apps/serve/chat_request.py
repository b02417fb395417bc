"""A request to /v1/chat/completions, read and checked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .fields import Fields, describe, objects
from .prompts import MAX_COUNT, MAX_TOP_LOGPROBS, read_sampling

# What changes nothing of the reply: bookkeeping of OpenAI's own service.
HARMLESS: dict[str, type] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
    "user": str,
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

Message = dict[str, Any]


@dataclass(frozen=True)
class Tools:
    """The functions that the model may call."""

    functions: list[dict[str, Any]]  # {"type": "function", "function": {…}}, as templates want it
    choice: str = "auto"  # "auto", "none", "required", or "function"
    name: str | None = None  # of the one that must be called, for "function"
    parallel: bool = True  # whether several may be called in one reply

    @property
    def forced(self) -> bool:
        """Whether the reply has to be a call."""
        return self.choice in ("required", "function")

    @property
    def offered(self) -> list[dict[str, Any]] | None:
        """What the template gets."""
        return self.functions if self.functions and self.choice != "none" else None


@dataclass(frozen=True)
class ChatRequest:
    """What a chat interface asks for; all of them are read into this."""

    model: str | None
    messages: list[Message]
    given: Mapping[str, Any]  # fields of SamplingParams
    tools: Tools = field(default_factory=lambda: Tools([]))
    format: Mapping[str, Any] | None = None  # what the reply has to look like
    template: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template
    count: int = 1
    top_logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False


def read_chat(fields: Fields) -> ChatRequest:
    """Raises BadField for whatever is wrong or not supported."""
    model = fields.text("model", required=True)
    messages = read_messages(fields)
    stream = fields.flag("stream")
    request = ChatRequest(
        model=model,
        messages=messages,
        given=_read_limits(fields),
        tools=_read_tools(fields),
        format=read_format(fields),
        template=read_template(fields),
        count=fields.integer("n", 1, MAX_COUNT) or 1,
        top_logprobs=_read_logprobs(fields),
        stream=stream,
        include_usage=read_stream_options(fields, stream),
    )
    fields.refuse("modalities", ["text"])
    fields.refuse("verbosity", "medium")
    for name in ("audio", "prediction", "web_search_options"):
        fields.refuse(name)
    for name in ("functions", "function_call"):
        fields.refuse(name, why="is not supported here; use tools and tool_choice")
    fields.harmless(HARMLESS)
    fields.done()
    return request


def read_stream_options(fields: Fields, stream: bool) -> bool:
    """Whether a stream ends with its usage."""
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.bad("stream_options", "is for streams; set stream to true")
    include = options.flag("include_usage")
    options.harmless({"include_obfuscation": bool})
    options.done()
    return include


def read_template(fields: Fields) -> dict[str, Any]:
    """Variables for the chat template: `chat_template_kwargs`, and how hard to think."""
    variables = fields.mapping("chat_template_kwargs") or {}
    for name in ("messages", "tools", "add_generation_prompt", "tokenize"):
        if name in variables:
            raise fields.bad("chat_template_kwargs", f"has {name}, which the server sets")
    effort = fields.choice("reasoning_effort", _EFFORTS)
    if effort is None:
        return variables
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"} | variables


def read_format(fields: Fields) -> dict[str, Any] | None:
    """What the reply has to look like: `response_format`, or our own `regex` and `choice`.

    One of {"json_schema": …}, {"json_object": true}, {"regex": …} and {"choice": […]}.
    """
    found: list[dict[str, Any]] = []
    wanted = fields.object("response_format")
    if wanted is not None:
        kind = wanted.choice("type", ("text", "json_object", "json_schema"), "text")
        if kind == "json_object":
            found.append({"json_object": True})
        if kind == "json_schema":
            found.append(_read_schema(wanted))
        wanted.done()
    own = fields.object("structured_outputs")
    if own is not None:
        regex, choice = own.text("regex"), own.items("choice")
        if regex is not None:
            found.append({"regex": regex})
        if choice is not None:
            if not choice or not all(isinstance(text, str) and text for text in choice):
                raise own.bad("choice", "expected a list of strings, none of them empty")
            found.append({"choice": choice})
        own.done()
    if len(found) > 1:
        raise fields.bad("structured_outputs", "more than one form is asked for")
    return found[0] if found else None


def _read_schema(wanted: Fields) -> dict[str, Any]:
    fields = wanted.object("json_schema")
    if fields is None:
        raise wanted.bad("json_schema", "is missing")
    fields.harmless({"name": str, "description": str})
    fields.flag("strict", None)  # what is asked for is always enforced
    schema = fields.mapping("schema")
    fields.done()
    return {"json_object": True} if schema is None else {"json_schema": schema}


def read_messages(fields: Fields) -> list[Message]:
    """OpenAI's messages, as chat templates want them."""
    values = fields.items("messages", required=True)
    if not values:
        raise fields.bad("messages", "is empty; give at least one message")
    return [_read_message(item) for item in objects(values, fields.name("messages"))]


def _read_message(fields: Fields) -> Message:
    roles = ("system", "developer", "user", "assistant", "tool")
    role = fields.choice("role", roles)
    if role is None:
        raise fields.bad("role", "is missing")
    message: Message = {"role": "system" if role == "developer" else role}
    content = read_content(fields, required=role != "assistant")
    if role == "assistant":
        _read_assistant(fields, message)
        if content is None and "tool_calls" not in message:
            raise fields.bad("content", "is missing")
    if role == "tool":
        message["tool_call_id"] = fields.text("tool_call_id", required=True)
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    fields.done()
    # Templates differ in what they make of a missing text; of an empty one they make nothing.
    return {**message, "content": "" if content is None else content}


def _read_assistant(fields: Fields, message: Message) -> None:
    refusal = fields.text("refusal")
    if refusal:
        raise fields.bad("refusal", "is not supported here; put it into content")
    fields.refuse("annotations", [])
    thought = fields.text("reasoning_content") or fields.text("reasoning")
    fields.ignore("reasoning")
    if thought:
        message["reasoning_content"] = thought
    calls = fields.items("tool_calls")
    if calls:
        where = fields.name("tool_calls")
        message["tool_calls"] = [_read_call(call) for call in objects(calls, where)]


def read_content(fields: Fields, *, required: bool) -> str | None:
    """A message's text, or the texts of its parts joined."""
    content = fields.take("content", required=required)
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fields.bad("content", "expected a string or a list of parts")
    return "".join(_read_part(part) for part in objects(content, fields.name("content")))


def _read_part(part: Fields) -> str:
    kind = part.choice("type", ("text", "input_text", "output_text"))
    if kind is None:
        raise part.bad("type", "is missing")
    text = part.text("text", required=True)
    part.refuse("annotations", [])
    part.refuse("logprobs", [])
    part.done()
    return text


def _read_call(fields: Fields) -> dict[str, Any]:
    call = {"id": fields.text("id", required=True), "type": "function"}
    fields.choice("type", ("function",))
    fields.ignore("index")
    function = fields.object("function")
    if function is None:
        raise fields.bad("function", "is missing")
    name = function.text("name", required=True)
    arguments = parse_arguments(function.text("arguments", "{}"))
    function.done()
    fields.done()
    return {**call, "function": {"name": name, "arguments": arguments}}


def parse_arguments(text: str) -> Any:
    """A call's arguments as templates want them; the text itself when it is no JSON."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


def _read_limits(fields: Fields) -> dict[str, Any]:
    given = read_sampling(fields)
    longest = fields.integer("max_completion_tokens", 1, 2**31)
    older = fields.integer("max_tokens", 1, 2**31)
    if longest is not None and older is not None and longest != older:
        raise fields.bad("max_tokens", "contradicts max_completion_tokens; give one of them")
    if longest or older:
        given["max_tokens"] = longest or older
    return given


def _read_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not wanted:
        if top:
            raise fields.bad("top_logprobs", "needs logprobs: true")
        return None
    return top or 0


def _read_tools(fields: Fields) -> Tools:
    values = fields.items("tools") or []
    functions = [_read_tool(tool) for tool in objects(values, fields.name("tools"))]
    parallel = fields.flag("parallel_tool_calls", True)
    choice, name = _read_tool_choice(fields)
    return check_tools(fields, Tools(functions, choice, name, parallel))


def check_tools(fields: Fields, tools: Tools) -> Tools:
    """Raise BadField for a choice that the functions do not allow."""
    names = [tool["function"]["name"] for tool in tools.functions]
    if len(set(names)) < len(names):
        raise fields.bad("tools", "has the same name twice")
    if tools.forced and not names:
        raise fields.bad("tool_choice", "needs tools")
    if tools.name is not None and tools.name not in names:
        raise fields.bad("tool_choice", f"names {tools.name!r:.60}, which is not among the tools")
    return tools


def _read_tool(fields: Fields) -> dict[str, Any]:
    if fields.choice("type", ("function",)) is None:
        raise fields.bad("type", "is missing")
    function = fields.object("function")
    if function is None:
        raise fields.bad("function", "is missing")
    made = as_function(function)
    fields.done()
    return made


def as_function(fields: Fields, parameters: str = "parameters") -> dict[str, Any]:
    """A function as templates want it."""
    made = {"name": fields.text("name", required=True)}
    description = fields.text("description")
    if description is not None:
        made["description"] = description
    schema = fields.mapping(parameters) or {"type": "object", "properties": {}}
    if (kind := schema.get("type", "object")) != "object":
        raise fields.bad(f"{parameters}.type", f"is {describe(kind)}, expected 'object'")
    made["parameters"] = schema
    fields.flag("strict", None)  # arguments are always held to the schema when a call is required
    fields.done()
    return {"type": "function", "function": made}


def _read_tool_choice(fields: Fields) -> tuple[str, str | None]:
    if not fields.has("tool_choice"):
        return "auto", None
    value = fields.take("tool_choice")
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise fields.bad("tool_choice", f"is {value!r:.60}; supported: auto, none, required")
        return value, None
    chosen = Fields(value, fields.name("tool_choice"))
    chosen.choice("type", ("function",))
    function = chosen.object("function")
    if function is None:
        raise chosen.bad("function", "is missing")
    name = function.text("name", required=True)
    function.done()
    chosen.done()
    return "function", name
