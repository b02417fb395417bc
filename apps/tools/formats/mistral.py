"""Mistral: [TOOL_CALLS] [{"name": …, "arguments": {…}}], later [TOOL_CALLS]name[ARGS]{…}"""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, Malformed, as_arguments, read_call, read_json
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.literal(BEGIN)
    yield from scanner.skip()
    if (yield from scanner.peek()) == "[":
        values = read_json((yield from scanner.bracketed("[")))
        calls = []
        for value in values:
            call = read_call(value)
            own = value.get("id")  # beside the function, not within
            calls.append(Call(call.name, call.arguments, own if isinstance(own, str) else call.id))
        return calls
    name = yield from scanner.word("[{")
    call_id = None
    if (yield from scanner.takes(CALL_ID)):
        call_id = yield from scanner.word("[{")
    if not (yield from scanner.takes(ARGS)) and (yield from scanner.peek()) != "{":
        raise Malformed("no arguments")
    yield from scanner.skip()
    return [Call(name, as_arguments(read_json((yield from scanner.bracketed("{")))), call_id)]


FORMAT = ToolFormat(
    "mistral",
    _block,
    begins=(BEGIN,),
    shown=(BEGIN, CALL_ID, ARGS),
    hints=(BEGIN,),
    short_ids=True,
    opening=re.compile(
        r"\[TOOL_CALLS\]\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\](?P<id>[^\s\[{]+))?"
        r"(?:\[ARGS\])?\s*(?=\{)"
    ),
)
