"""Functionary 3.1 and Llama 3.1 with own functions: <function=NAME>{…}</function>"""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, as_arguments, read_json
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

_BEGIN, _END = "<function=", "</function>"


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.literal(_BEGIN)
    name = (yield from scanner.until(">")).strip()
    yield from scanner.skip()
    arguments = as_arguments(read_json((yield from scanner.bracketed("{"))))
    yield from scanner.closing(_END, following=_BEGIN)
    return [Call(name, arguments)]


FORMAT = ToolFormat(
    "functionary",
    _block,
    begins=(_BEGIN,),
    hints=("=example_function_name>{",),
    opening=re.compile(rf"{_BEGIN}(?P<name>[^>]+)>\s*(?=\{{)"),
)
