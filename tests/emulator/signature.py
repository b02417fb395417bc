"""What a kernel's text says of itself: its template arguments and its parameters."""

import re
from dataclasses import dataclass

from .tokens import Token, closing, join, skip_space, split, tokenize

_INSTANTIATION = re.compile(
    r"template\s*\[\[host_name\([^)]*\)\]\]\s*\[\[kernel\]\]\s*decltype\([^;]*?\)\s*([^;]*);"
)
_ATTRIBUTE = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    declaration: str  # without attributes
    attribute: str  # "buffer" or one of Metal's thread attributes
    condition: str = ""  # the function constant that must be true for the buffer to be bound


@dataclass(frozen=True)
class Signature:
    """A kernel: `text` is all of its source, `call` names the instance, such as `f<float, 3>`."""

    name: str
    call: str
    parameters: tuple[Parameter, ...]
    template: tuple[tuple[str, str, str], ...]  # (kind, name, argument)

    @property
    def buffers(self) -> list[str]:
        return [p.name for p in self.parameters if p.attribute == "buffer"]


def strip_instantiations(text: str) -> tuple[str, list[str]]:
    """`text` without explicit instantiations, and what they instantiate."""
    found = [match.group(1).strip() for match in _INSTANTIATION.finditer(text)]
    return _INSTANTIATION.sub(lambda m: "\n" * m.group().count("\n"), text), found


def parse_signature(text: str, call: str) -> Signature:
    """The signature of the kernel that `call` instantiates, from its definition in `text`.

    Raises ValueError when `text` defines no such kernel.
    """
    name = call.split("<")[0].strip()
    tokens = tokenize(text)
    at = _definition(tokens, name)
    if at < 0:
        raise ValueError(f"no kernel {name} is defined in the source")
    opening = skip_space(tokens, at + 1)
    inside = tokens[opening + 1 : closing(tokens, opening)]
    parameters = tuple(_parameter(join(part)) for part in split(inside))
    arguments = _arguments(call)
    return Signature(name, call, parameters, _template(tokens, at, arguments))


def _definition(tokens: list[Token], name: str) -> int:
    """The index of the kernel's name where `[[kernel]] void name(` or `kernel void name(` is."""
    marked = False
    for i, token in enumerate(tokens):
        if token.text == "kernel":
            marked = True
        elif token.text in (";", "}"):
            marked = False
        elif marked and token.text == name and tokens[skip_space(tokens, i + 1)].text == "(":
            return i
    return -1


def _parameter(text: str) -> Parameter:
    attributes = [
        part.strip() for match in _ATTRIBUTE.finditer(text) for part in match.group(1).split(",")
    ]
    declaration = " ".join(_ATTRIBUTE.sub("", text).split())
    name = re.findall(r"\w+", declaration)[-1]
    condition = ""
    attribute = "buffer"
    for part in attributes:
        if part.startswith("function_constant"):
            condition = part[part.index("(") + 1 : -1].strip()
        elif not part.startswith("buffer"):
            attribute = part
    return Parameter(name, declaration, attribute, condition)


def _arguments(call: str) -> list[str]:
    if "<" not in call:
        return []
    inside = tokenize(call[call.index("<") + 1 : call.rindex(">")])
    return [join(part).strip() for part in split(inside)]


def _template(
    tokens: list[Token], at: int, arguments: list[str]
) -> tuple[tuple[str, str, str], ...]:
    """The template parameters in front of the kernel, each with its argument."""
    if not arguments:
        return ()
    start = max(i for i in range(at) if tokens[i].text == "template")
    opening = skip_space(tokens, start + 1)
    end = next(i for i in range(opening, at) if tokens[i].text == ">")
    result = []
    for part, argument in zip(split(tokens[opening + 1 : end]), arguments, strict=False):
        kind, name = join(part).split("=")[0].strip().rsplit(maxsplit=1)
        result.append((kind, name, argument))
    return tuple(result)
