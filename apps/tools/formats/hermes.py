"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4: JSON in a tag.

<tool_call>{"name": …, "arguments": {…}}</tool_call>
"""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, read_call, read_json
from ..early import JSON_OPENING
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

BEGIN, END = "<tool_call>", "</tool_call>"


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.literal(BEGIN)
    yield from scanner.skip()
    call = read_call(read_json((yield from scanner.bracketed("{"))))
    yield from scanner.closing(END, following=BEGIN)
    return [call]


FORMAT = ToolFormat(
    "hermes",
    _block,
    begins=(BEGIN,),
    shown=(BEGIN, END),
    hints=(BEGIN,),
    opening=re.compile(rf"{BEGIN}\s*{JSON_OPENING}"),
)
