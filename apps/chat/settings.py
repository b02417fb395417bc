"""What `/set` changes: the sampling of replies, and how the chat shows and keeps them."""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from ...runtime.errors import InputError
from ...runtime.sampling import SamplingParams

# Set by options of the command alone: they have no form on one line.
_UNTYPED = ("dry_sequence_breakers", "logit_bias")
SAMPLING = tuple(f.name for f in fields(SamplingParams) if f.name not in _UNTYPED)
# The first value of each is what holds until another one is set.
CHOICES = {
    "think": ("fold", "show"),
    "overflow": ("ask", "drop", "stop"),
    "markdown": ("on", "off"),
    "keep_cache": ("off", "on"),
}
NAMES = (*SAMPLING, *CHOICES)
DEFAULT = "default"  # the value that takes a setting back

_KINDS = {
    f.name: f.type.__name__ if isinstance(f.type, type) else str(f.type)
    for f in fields(SamplingParams)
}


def parse(name: str, value: str) -> Any:
    """The value of the setting `name` from what was typed; None takes the setting back.

    Raises InputError: unknown name, or a text of another form. Ranges are `SamplingParams`'.
    """
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else "/set lists them"
        raise InputError(f"there is no setting {name!r}; {hint}")
    if value == DEFAULT:
        return None
    if name in CHOICES:
        return _choice(name, value, CHOICES[name])
    kind = _KINDS[name]
    if kind == "bool":
        return _choice(name, value, ("on", "off")) == "on"
    if kind.startswith(("int", "float")):
        return _number(name, value, int if kind.startswith("int") else float)
    return (value.replace("\\n", "\n"),)  # a stop text; a line break can be typed as \n


def values_of(name: str) -> tuple[str, ...]:
    """What can be typed after the setting `name`, for completion."""
    if name in CHOICES:
        return (*CHOICES[name], DEFAULT)
    return ("on", "off", DEFAULT) if _KINDS.get(name) == "bool" else (DEFAULT,)


def spell(value: Any) -> str:
    """A setting's value as `/set` shows it."""
    if value is None or value in ((), []):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(repr, value)) if isinstance(value, tuple | list) else str(value)


def check_choices(values: Mapping[str, Any], where: str) -> dict[str, str]:
    """Those of `values` that are in CHOICES. Raises InputError for a value that is none of them."""
    chosen = {name: values[name] for name in CHOICES if name in values}
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise InputError(
                f"{where} has {name} {value!r}; it must be {' or '.join(CHOICES[name])}"
            )
    return chosen


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InputError(f"{name} is {value!r}; it must be {' or '.join(choices)}")
    return value


def _number(name: str, value: str, kind: type) -> int | float:
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InputError(f"{name} is {value!r}; it must be {wanted}") from None
