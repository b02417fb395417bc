"""Qwen3-Coder and 3.5, Nemotron 3, Step, Seed-OSS: a tag for the function and for each parameter.

<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>
"""

from collections.abc import Mapping
from typing import Any

from ..calls import Call, as_arguments
from ..format import ToolFormat
from ..scanner import Scanner, Waiting
from .tagged_values import read_value

_TAGS = ("tool_call", "seed:tool_call")
_FUNCTION, _PARAMETER = "<function=", "<parameter="
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    tag = ""
    for name in _TAGS:  # some models leave it out
        if (yield from scanner.takes(f"<{name}>")):
            tag = name
    yield from scanner.skip()
    yield from scanner.literal(_FUNCTION)
    name = (yield from scanner.until(">")).strip()
    arguments = {}
    yield from scanner.skip()
    while not (yield from scanner.takes(_FUNCTION_END)):
        yield from scanner.literal(_PARAMETER)
        key = (yield from scanner.until(">")).strip()
        text = yield from _value(scanner)
        arguments[key] = read_value(text, tools.get(name), key)
    if tag:
        yield from scanner.closing(f"</{tag}>", following=f"<{tag}>")
    return [Call(name, as_arguments(arguments))]


def _value(scanner: Scanner) -> Waiting[str]:
    """A value up to the end tag behind which the next tag stands: it may hold end tags itself."""
    text = ""
    while True:
        text += yield from scanner.until(_PARAMETER_END)
        place = scanner.at
        yield from scanner.skip()
        start = scanner.at
        for following in (_PARAMETER, _FUNCTION_END):
            if (yield from scanner.takes(following)):
                scanner.at = start
                return text.removeprefix("\n").removesuffix("\n")
        scanner.at = place
        text += _PARAMETER_END


FORMAT = ToolFormat(
    "qwen-xml",
    _block,
    begins=(*(f"<{tag}>" for tag in _TAGS), _FUNCTION),
    shown=(*(f"<{tag}>" for tag in _TAGS), *(f"</{tag}>" for tag in _TAGS)),
    hints=(f"<tool_call>\\n{_FUNCTION}", f"<tool_call>\n{_FUNCTION}"),
)
