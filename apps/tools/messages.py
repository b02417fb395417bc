"""Earlier calls and their results, from OpenAI's form into what chat templates expect."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.errors import InputError

_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


def prepare(
    messages: Sequence[Mapping[str, Any]], *, arguments_as_text: bool, short_ids: bool
) -> list[dict[str, Any]]:
    """Arguments as an object, or as text; ids of nine characters where these are wanted; and the
    name of its tool with each result, which some templates write.

    Raises InputError for a call without a name, or whose arguments are no JSON object.
    """
    names: dict[str, str] = {}  # of the tool, by the call's id as it came
    prepared = []
    for index, message in enumerate(messages):
        message = dict(message)
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                name, arguments = _read(call, index)
                call_id = str(call.get("id") or f"{index}.{len(calls)}")
                names[call_id] = name
                calls.append(
                    {
                        "id": _short(call_id) if short_ids else call_id,
                        "type": "function",
                        "function": {
                            "name": name,
                            "arguments": _text(arguments) if arguments_as_text else arguments,
                        },
                    }
                )
            message["tool_calls"] = calls
        elif message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
            call_id = message["tool_call_id"]
            if call_id in names:
                message.setdefault("name", names[call_id])
            message["tool_call_id"] = _short(call_id) if short_ids else call_id
        prepared.append(message)
    return prepared


def _read(call: Any, index: int) -> tuple[str, dict[str, Any]]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"message {index} has a tool call without a function's name: {call!r:.80}")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise InputError(
            f"message {index} calls {function['name']!r:.60} with arguments that are no JSON "
            f"object: {function['arguments']!r:.80}"
        )
    return function["name"], dict(arguments)


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _short(call_id: str) -> str:
    """The id itself if it is nine letters or digits, else nine that stand for it."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
