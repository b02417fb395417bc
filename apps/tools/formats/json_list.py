"""A list of calls in JSON behind a mark: Granite 3, Phi-4-mini, Nemotron Nano."""

from collections.abc import Mapping
from typing import Any

from ..calls import Call, read_call, read_json
from ..format import Block, ToolFormat
from ..scanner import Scanner, Waiting


def _block_within(begin: str, end: str) -> Block:
    def block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
        yield from scanner.literal(begin)
        yield from scanner.skip()
        values = read_json((yield from scanner.bracketed("[")))
        place = scanner.at
        yield from scanner.skip()
        if not (yield from scanner.takes(end)):  # Granite writes none
            scanner.at = place
        return [read_call(value) for value in values]

    return block


def _format(name: str, begin: str, end: str) -> ToolFormat:
    block = _block_within(begin, end)
    return ToolFormat(name, block, begins=(begin,), shown=(begin, end), hints=(begin,))


FORMATS = (
    _format("granite", "<|tool_call|>", "<|/tool_call|>"),
    _format("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
)
