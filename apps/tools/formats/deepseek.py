"""DeepSeek V3, R1 and V3.1: a name and JSON between marks of their own."""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, as_arguments, read_json
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

_ALL, _ONE, _NEXT = map(re.escape, (_ALL_BEGIN, _BEGIN, _SEPARATOR))


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    yield from scanner.takes(_ALL_BEGIN)
    yield from scanner.skip()
    calls = [(yield from _call(scanner))]
    while True:
        place = scanner.at
        yield from scanner.skip()
        start = scanner.at
        if not (yield from scanner.takes(_BEGIN)):
            break
        scanner.at = start
        calls.append((yield from _call(scanner)))
    if not (yield from scanner.takes(_ALL_END)):
        scanner.at = place
    return calls


def _call(scanner: Scanner) -> Waiting[Call]:
    yield from scanner.literal(_BEGIN)
    name = (yield from scanner.until(_SEPARATOR)).strip()
    yield from scanner.skip()
    fenced = (yield from scanner.peek()) != "{"
    if fenced:  # up to V3: "function", the name, and JSON in a fence
        name = (yield from scanner.until("\n")).strip()
        yield from scanner.literal("```json")
        yield from scanner.skip()
    arguments = as_arguments(read_json((yield from scanner.bracketed("{"))))
    yield from scanner.skip()
    if fenced:
        yield from scanner.literal("```")
    yield from scanner.closing(_END, following=_BEGIN)
    return Call(name, arguments)


FORMAT = ToolFormat(
    "deepseek",
    _block,
    begins=(_ALL_BEGIN, _BEGIN),
    shown=(_ALL_BEGIN, _ALL_END, _BEGIN, _SEPARATOR, _END),
    hints=(_BEGIN,),
    opening=re.compile(
        rf"(?:{_ALL})?\s*{_ONE}(?:\w*{_NEXT}(?=[^{{\s]))?"  # up to V3 a type stands before the name
        rf"(?P<name>[^\n{{<]+?)(?:{_NEXT}|\n```json)\s*(?=\{{)"
    ),
)
