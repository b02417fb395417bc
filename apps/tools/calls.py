"""What a parser finds in a reply: text, and calls of tools."""

import json
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Content:
    """A piece of text that belongs to no call."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The model begins to call `name`; the calls of a reply are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Content | CallStart | CallArguments


@dataclass(frozen=True)
class ToolCall:
    """A call put together; `arguments` is the JSON of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Call:
    """A call as a format reads it; `id` is the model's own, where it gives one."""

    name: str
    arguments: str
    id: str | None = None


class Malformed(Exception):
    """What began like a call is none; never leaves this package."""


def gather(events: Iterable[Event]) -> tuple[str, list[ToolCall]]:
    """The text of a reply, and its calls."""
    text, calls = "", []
    for event in events:
        match event:
            case Content():
                text += event.text
            case CallStart():
                calls.append(ToolCall(event.id, event.name, ""))
            case CallArguments():
                call = calls[event.index]
                calls[event.index] = replace(call, arguments=call.arguments + event.text)
    return text, calls


def new_call_id(prefix: str = "call_", length: int = 24) -> str:
    """A random id, in the form of OpenAI's."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(length))


def read_json(text: str) -> Any:
    """The value of a JSON text; line breaks within strings, a model's common mistake, are taken.

    Raises Malformed.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None


def write_json(value: Any) -> str:
    """JSON that can be encoded as UTF-8. Raises Malformed for a value that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, as an escape
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    return text


def read_call(value: Any, *, arguments_needed: bool = False) -> Call:
    """A call given as {"name": …, "arguments" or "parameters": …}. Raises Malformed."""
    if not isinstance(value, Mapping):
        raise Malformed("not an object")
    value = value.get("function") if isinstance(value.get("function"), Mapping) else value
    name, call_id = value.get("name"), value.get("id")
    if not isinstance(name, str) or not name:
        raise Malformed("no name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if arguments_needed and not given:
        raise Malformed("no arguments")
    arguments = given[0] if given else {}
    if isinstance(arguments, str):  # encoded twice
        arguments = read_json(arguments)
    return Call(name, as_arguments(arguments), call_id if isinstance(call_id, str) else None)


def as_arguments(value: Any) -> str:
    """The JSON of an object. Raises Malformed for anything else."""
    if not isinstance(value, Mapping):
        raise Malformed("arguments are no object")
    return write_json(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
