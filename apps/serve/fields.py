"""The fields of a JSON request: each is read once, checked, and what nobody read is refused."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ApiError, BadField

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class Fields:
    """One JSON object under way to being understood; null counts as not given.

    Each reader takes a field out, and `done` refuses those that are left: nothing that a client
    asks for is silently ignored. All of them raise BadField, with the field's path.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self.path = path
        if not isinstance(value, dict):
            raise BadField(path or "the request", f"is {describe(value)}, expected an object")
        self._left = dict(value)

    def name(self, field: str) -> str:
        """The field's path from the request, as an error names it."""
        return f"{self.path}.{field}" if self.path else field

    def bad(self, field: str, problem: str) -> BadField:
        """The error that says what is wrong with `field`."""
        return BadField(self.name(field), problem)

    def take(self, field: str, *, required: bool = False) -> Any:
        """The value as it is; None when it is not there."""
        value = self._left.pop(field, None)
        if required and value is None:
            raise self.bad(field, "is missing")
        return value

    def peek(self, field: str) -> Any:
        """The value as it is, without taking it."""
        return self._left.get(field)

    def has(self, field: str) -> bool:
        """Whether the field is there and has not been read."""
        return self._left.get(field) is not None

    def text(self, field: str, default: str | None = None, *, required: bool = False) -> Any:
        """A string."""
        value = self.take(field, required=required)
        if value is None:
            return default
        return self._of(str, field, value)

    def flag(self, field: str, default: bool | None = False) -> Any:
        """True or false."""
        value = self.take(field)
        return default if value is None else self._of(bool, field, value)

    def number(self, field: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`."""
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(field, f"is {describe(value)}, expected a number")
        if not low <= value <= high:  # not for NaN, and for no whole number that no float can hold
            raise self.bad(field, f"is {describe(value)}, expected {low:g} to {high:g}")
        return float(value)

    def integer(self, field: str, low: int, high: int, *, required: bool = False) -> int | None:
        """A whole number from `low` to `high`; 3.0 is one."""
        value = self.take(field, required=required)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(field, f"is {describe(value)}, expected a whole number")
        if not low <= value <= high:
            raise self.bad(field, f"is {str(value)[:30]}, expected {low} to {high}")
        return value

    def choice(self, field: str, options: Sequence[str], default: str | None = None) -> Any:
        """One of `options`."""
        value = self.take(field)
        if value is None:
            return default
        if value not in options or not isinstance(value, str):
            wanted = " or ".join(repr(option) for option in options)
            raise self.bad(field, f"is {describe(value)}, supported: {wanted}")
        return value

    def items(self, field: str, *, required: bool = False) -> list[Any] | None:
        """A list."""
        value = self.take(field, required=required)
        return None if value is None else self._of(list, field, value)

    def mapping(self, field: str) -> dict[str, Any] | None:
        """An object, as it is."""
        value = self.take(field)
        return None if value is None else self._of(dict, field, value)

    def object(self, field: str) -> "Fields | None":
        """An object whose own fields are to be read."""
        value = self.take(field)
        return None if value is None else Fields(value, self.name(field))

    def ignore(self, *names: str) -> None:
        """Take what changes nothing of the reply, and is documented so."""
        for name in names:
            self._left.pop(name, None)

    def harmless(self, kinds: Mapping[str, type]) -> None:
        """Take fields of these types, which change nothing of the reply."""
        for name, kind in kinds.items():
            if (value := self.take(name)) is not None:
                self._of(kind, name, value)

    def refuse(self, field: str, *harmless: Any, why: str = "is not supported here") -> None:
        """Refuse a field by name, unless it says what is done anyway."""
        value = self.take(field)
        if value is not None and not any(_same(value, item) for item in harmless):
            raise self.bad(field, why)

    def done(self) -> None:
        """Refuse what is left."""
        for field, value in self._left.items():
            if value is not None:
                raise self.bad(field, "is not supported here")

    def _of(self, kind: type, field: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise self.bad(field, f"is {describe(value)}, expected {_NAMES[kind]}")
        return value


def objects(values: list[Any], path: str) -> list[Fields]:
    """The items of a list of objects."""
    return [Fields(value, f"{path}[{index}]") for index, value in enumerate(values)]


def parse_body(data: bytes) -> Fields:
    """The fields of a request body. Raises ApiError (400) for what is no JSON object."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the request is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise ApiError(400, "the request has half of a surrogate pair, which is no text") from None
    except RecursionError:
        raise ApiError(400, "the request is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number of thousands of digits
        raise ApiError(400, f"the request is not valid JSON: {error!s:.200}") from None
    return Fields(value)


def describe(value: Any) -> str:
    """A value in an error: short, and its kind when it is not simple."""
    if isinstance(value, Mapping | list):
        return _NAMES[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _same(value: Any, item: Any) -> bool:
    return value == item and isinstance(value, bool) == isinstance(item, bool)
