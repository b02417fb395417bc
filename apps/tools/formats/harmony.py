"""GPT-OSS: <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>"""

import re
from collections.abc import Mapping
from typing import Any

from ..calls import Call, as_arguments, read_json
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

_TO, _CHANNEL, _MESSAGE = " to=functions.", "<|channel|>commentary", "<|message|>"
_BEGINS = tuple(
    f"{start}{channel}{_TO}" for start in ("<|start|>assistant", "") for channel in (_CHANNEL, "")
)


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    for begin in _BEGINS:  # the longest of those that fit comes first
        if (yield from scanner.takes(begin)):
            break
    name = yield from scanner.word("<")
    if _CHANNEL not in begin:
        yield from scanner.literal(_CHANNEL)
    yield from scanner.until(_MESSAGE)
    yield from scanner.skip()
    arguments = as_arguments(read_json((yield from scanner.bracketed("{"))))
    yield from scanner.closing("<|call|>", following="<|start|>")
    return [Call(name, arguments)]


FORMAT = ToolFormat(
    "harmony",
    _block,
    begins=_BEGINS,
    shown=("<|start|>", "<|channel|>", "<|constrain|>", _MESSAGE, "<|call|>"),
    opening=re.compile(
        rf"(?s:.*?){re.escape(_TO)}(?P<name>[^\s<]+)(?s:.*?){re.escape(_MESSAGE)}\s*(?=\{{)"
    ),
)
