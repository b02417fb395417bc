"""Llama 3.1 to 3.3: {"name": …, "parameters": {…}} as the reply, or behind <|python_tag|>."""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, Malformed, read_call, read_json
from ..early import JSON_OPENING
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

TAG = "<|python_tag|>"
_FIRST_KEYS = ("name", "type", "parameters", "function")


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.takes(TAG)
    yield from scanner.skip()
    start = scanner.at
    # The first key decides early, so that a reply in other JSON is not held back to its end.
    yield from scanner.literal("{")
    yield from scanner.skip()
    yield from scanner.literal('"')
    if (yield from scanner.word('"')) not in _FIRST_KEYS:
        raise Malformed("not a call")
    scanner.at = start
    value = read_json((yield from scanner.bracketed("{")))
    return [read_call(value, arguments_needed=True)]


FORMAT = ToolFormat(
    "llama3",
    _block,
    begins=(TAG,),
    bare="{",
    shown=(TAG,),
    hints=(TAG, '{"name": function name'),
    opening=re.compile(rf"(?:{re.escape(TAG)})?\s*{JSON_OPENING}"),
)
