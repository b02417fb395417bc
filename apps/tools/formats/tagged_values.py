"""Arguments that formats with a tag for each write as plain text: their types are in the schema."""

import ast
import warnings
from collections.abc import Mapping
from typing import Any

from ..calls import Malformed, read_json, write_json


def read_value(text: str, tool: Mapping[str, Any] | None, key: str) -> Any:
    """The value of one argument.

    A text that the schema calls a string is one. Otherwise it is JSON if it reads as such, or
    Python where the schema states a type (Seed's template writes that), and else a string.
    """
    kind = _kind(tool, key)
    if kind == "string":
        return text
    try:
        value = read_json(text)
    except Malformed:
        return text if kind is None else _python(text)
    return text if isinstance(value, str) and kind is None else value


def _python(text: str) -> Any:
    """The value of a Python literal that JSON can hold, or else the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text.strip())
        write_json(value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, Malformed):
        return text
    return value


def _kind(tool: Mapping[str, Any] | None, key: str) -> Any:
    """The type that a tool's schema states for an argument; None when it states none."""
    part: Any = tool or {}
    for step in ("parameters", "properties", key):
        part = part.get(step) if isinstance(part, Mapping) else None
    return part.get("type") if isinstance(part, Mapping) else None
