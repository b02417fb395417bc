"""GLM 4.5 to 4.7: <tool_call>NAME <arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>"""

from collections.abc import Mapping
from typing import Any

from ..calls import Call, as_arguments
from ..format import ToolFormat
from ..scanner import Scanner, Waiting
from .tagged_values import read_value

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.literal(_BEGIN)
    yield from scanner.skip()
    name = yield from scanner.word("<{[")
    arguments = {}
    yield from scanner.skip()
    while not (yield from scanner.takes(_END)):
        yield from scanner.literal("<arg_key>")
        key = (yield from scanner.until("</arg_key>")).strip()
        yield from scanner.skip()
        yield from scanner.literal("<arg_value>")
        text = yield from scanner.until("</arg_value>")
        arguments[key] = read_value(text, tools.get(name), key)
        yield from scanner.skip()
    return [Call(name, as_arguments(arguments))]


FORMAT = ToolFormat(
    "glm",
    _block,
    begins=(_BEGIN,),
    shown=(_BEGIN, _END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    hints=("<arg_key>",),
)
