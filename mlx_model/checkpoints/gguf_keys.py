"""The keys of a GGUF's architecture, taken one by one, so that none is passed over in silence.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from typing import Any

import numpy as np

from ...runtime.errors import InputError
from .gguf import GGUFFile

_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout")


class Keys:
    """The `<architecture>.` keys; `finish` refuses what was not taken, unless it says "off"."""

    def __init__(self, file: GGUFFile) -> None:
        self._path = file.path
        self._prefix = f"{file.metadata.get('general.architecture')}."
        self._left = {k: v for k, v in file.metadata.items() if k.startswith(self._prefix)}

    def has(self, key: str) -> bool:
        """Whether `key` stands there, not taken yet, and does not say "off"."""
        return bool(self._left.get(self._prefix + key))

    def _take(self, key: str, kind: type, default: Any) -> Any:
        value = self._left.pop(self._prefix + key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one value a layer, all the same
        if value is None:
            raise InputError(f"{self._path} lacks the key '{self._prefix}{key}'; it is incomplete")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            found = f"{self._path} has {self._prefix}{key} = {value!r:.60}"
            raise InputError(f"{found}, expected one {kind.__name__}")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A count of at least 1."""
        value = self._take(key, int, default)
        if value < 1:
            raise InputError(f"{self._path} has {self._prefix}{key} = {value}, expected at least 1")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        return shortest(self._take(key, float, default))

    def text(self, key: str, default: str) -> str:
        return self._take(key, str, default)

    def flag(self, key: str, default: bool) -> bool:
        return self._take(key, bool, default)

    def flags(self, key: str, count: int, period: int) -> list[bool]:
        """One bool a layer; the file may state a period: true but for each so-manyth layer."""
        value = self._left.pop(self._prefix + key, period)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            value = [bool((layer + 1) % value) for layer in range(count)]
        right = isinstance(value, list) and len(value) == count
        if not right or not all(isinstance(item, bool) for item in value):
            raise InputError(
                f"{self._path} has {self._prefix}{key} = {value!r:.60}, expected "
                f"one number or {count} bools"
            )
        return value

    def only(self, key: str, allowed: Any) -> None:
        """Refuse any other value of `key`: it would change the output."""
        value = shortest(self._left.pop(self._prefix + key, allowed))
        if value != allowed:
            raise InputError(
                f"{self._path} has {self._prefix}{key} = {value!r:.60}; "
                f"only {allowed!r} is implemented"
            )

    def finish(self) -> None:
        """Refuse what was not taken and does not say "off"."""
        for key in _HARMLESS:
            self._left.pop(self._prefix + key, None)
        left = sorted(key for key, value in self._left.items() if value)
        if left:
            raise InputError(f"{self._path} has {', '.join(left)}, which is not implemented")


def shortest(value: Any) -> Any:
    """A float32 that the file holds, as the float with the fewest digits that rounds to it.

    1e-05 in config.json is 9.999999747378752e-06 after float32; this gives 1e-05 back.
    """
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value
