"""Chat templates: a conversation to the text that a model was trained on.

Templates come with the model, so they are somebody else's program. They run in jinja2's immutable
sandbox, see plain data only, and cannot multiply a text or a number beyond all measure or render
without end. Not covered: a template that burns processor time in nested loops without writing
anything, or that builds a huge text by repeated addition or by a padding width.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from .errors import InputError

MAX_RENDERED_CHARS = 1 << 26  # the longest context in use today holds about 2^24 characters
_MAX_REPEATED = 1 << 22  # items of a text or list that a template's `*` may make
_MAX_POWER_BITS = 1 << 12  # bits of a number that a template's `**` may make
_MAX_ERROR_CHARS = 300

# Names under which a message's reasoning comes; templates read the first or the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A model's chat template, or its several named ones.

    `source` is jinja text, or template texts by name as in a list-valued `chat_template` of
    tokenizer_config.json. `special_tokens` are the texts that templates know by name, such as
    `bos_token`. Nothing is compiled before the first `render`.
    """

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, Any] = {}

    def render(
        self,
        messages: list[dict[str, Any]],
        /,  # a variable may have the name of either
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation as text, byte for byte as `transformers.apply_chat_template` writes it.

        Each message is a dict with a "role" and a "content" (text, or a list of content parts;
        tool calls may stand alone). `kwargs` reach the template as variables ("documents",
        "enable_thinking", …). With several templates, "tool_use" serves a call with `tools` and
        "default" the others.

        Raises InputError for messages of another form, and for whatever the template raises.
        """
        template = self._template("tool_use" if tools is not None else "default")
        variables = self._special_tokens | {"documents": None} | _plain(kwargs, "a variable")
        variables["messages"] = [_prepare(message) for message in _checked(messages)]
        variables["tools"] = _plain(_checked_tools(tools), "tools")
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            return _write(template.generate(variables))
        except InputError:
            raise
        except Exception as error:  # whatever a foreign program may raise
            raise InputError(
                f"the chat template refused the conversation: {_line(error)}"
            ) from None

    def _template(self, name: str) -> Any:
        if name not in self.sources:
            name = "default"
        if name not in self.sources:
            raise InputError(
                f"the model has the chat templates {', '.join(sorted(self.sources))} and none "
                "called 'default'; name one as 'default' in tokenizer_config.json"
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self.sources[name])
            except Exception as error:
                raise InputError(f"the chat template is not valid: {_line(error)}") from None
        return self._compiled[name]

    @cached_property
    def _environment(self) -> Any:
        from .chat_sandbox import make_environment

        environment = make_environment(_MAX_REPEATED, _MAX_POWER_BITS)
        environment.filters["tojson"] = _to_json
        environment.globals["strftime_now"] = _strftime_now
        return environment


def parse_chat_template(value: Any, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The template under `chat_template` of tokenizer_config.json: a text, or named ones.

    Raises InputError when it is neither.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return ChatTemplate(value, special_tokens)
    if isinstance(value, list):
        items = [item for item in value if isinstance(item, dict)]
        named = {item.get("name"): item.get("template") for item in items}
        if named and len(items) == len(value) and _all_text(named):
            return ChatTemplate(named, special_tokens)
    raise InputError(
        f"tokenizer_config.json has a {type(value).__name__} as chat_template, expected a text or "
        'a list of {"name": …, "template": …}'
    )


def _all_text(named: dict[Any, Any]) -> bool:
    return all(isinstance(text, str) for pair in named.items() for text in pair)


def _checked(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise InputError("a conversation is a list of at least one message; none was given")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InputError(
                f"message {index} is a {type(message).__name__}, expected a dict with a role and "
                "a content"
            )
        if not isinstance(message.get("role"), str):
            raise InputError(
                f"message {index} has the role {message.get('role')!r:.60}, expected a text"
            )
        content = message.get("content")
        if content is None:
            if "content" not in message and not message.get("tool_calls"):
                raise InputError(f"message {index} ({message['role']}) has no content")
        elif not isinstance(content, str | list):
            raise InputError(
                f"message {index} ({message['role']}) has a {type(content).__name__} as content, "
                "expected a text or a list of parts"
            )
    return messages


def _checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None or (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
        return tools
    raise InputError("tools are a list of JSON schemas (dicts); something else was given")


def _prepare(message: dict[str, Any]) -> dict[str, Any]:
    """A copy without empty fields, its reasoning under both names that templates read."""
    message = {
        key: value for key, value in _plain(message, "a message").items() if value is not None
    }
    reasoning = next((message[key] for key in _REASONING if key in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any, what: str) -> Any:
    """A copy made of JSON's types alone: a template must not get at methods of richer objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, what): _plain(item, what) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, what) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item, what) for item in value)
    raise InputError(
        f"the chat template got a {type(value).__name__} in {what}; expected text, numbers, lists "
        "and dicts"
    )


def _write(pieces: Any) -> str:
    written, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_RENDERED_CHARS:
            raise InputError(
                f"the chat template wrote more than {MAX_RENDERED_CHARS:,} characters; stopped"
            )
        written.append(piece)
    return "".join(written)


def _line(error: Exception) -> str:
    """An error's message on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_ERROR_CHARS else text[: _MAX_ERROR_CHARS - 1] + "…"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes HTML and sorts keys."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
