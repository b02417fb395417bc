"""Llama 4, Llama 3.2, Gemma 3, LFM2: calls in Python, [name(key="value"), other()]"""

import ast
import re
import warnings
from collections.abc import Mapping
from typing import Any

from ..calls import Call, Malformed, as_arguments
from ..format import ToolFormat
from ..scanner import Scanner, Waiting

_MARKS = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}
_JSON_NAMES = {"true": True, "false": False, "null": None}
_FIRST_CALL = re.compile(r"[^\W\d][\w.]*\Z")


def _block(scanner: Scanner, tools: Mapping[str, Any]) -> Waiting[list[Call]]:
    end = ""
    for begin, closes in _MARKS.items():
        if (yield from scanner.takes(begin)):
            end = closes
            yield from scanner.skip()
    start = scanner.at
    # The first name decides early, so that a reply that begins with a list is not held back.
    yield from scanner.literal("[")
    yield from scanner.skip()
    name = yield from scanner.word("(")
    yield from scanner.skip()
    if not _FIRST_CALL.match(name) or (yield from scanner.peek()) != "(":
        raise Malformed("not a call")
    scanner.at = start
    calls = _read((yield from scanner.bracketed("[", quotes="\"'")))
    if end:
        yield from scanner.closing(end, following=next(iter(_MARKS)))
    return calls


def _read(text: str) -> list[Call]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string: it means what it says
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(str(error)) from None
    return [_call(node) for node in tree.elts]


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise Malformed("not a call with named arguments")
    if any(keyword.arg is None for keyword in node.keywords):
        raise Malformed("unpacked arguments")
    arguments = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    return Call(ast.unparse(node.func), as_arguments(arguments))


def _value(node: ast.expr) -> Any:
    """A literal, with JSON's names for constants too."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise Malformed("a key that is no text")
        return dict(zip(keys, map(_value, node.values), strict=True))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Malformed(str(error)) from None


FORMAT = ToolFormat(
    "pythonic",
    _block,
    begins=tuple(_MARKS),
    bare="[",
    shown=(*_MARKS.keys(), *_MARKS.values()),
    hints=("[func_name1(", "[func1(", "<|tool_call_start|>"),
)
