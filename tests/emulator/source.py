"""Metal source as clang can read it, in the three dialects of runtime/msl/msl.h."""

import re
from pathlib import Path

from .signature import Signature
from .tokens import Token, closing, closing_angle, join, skip_space, tokenize

RUN, CXX, OPENCL = "EMU_RUN", "EMU_CXX", "EMU_OPENCL"

_SCALARS = "char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float"
_VECTOR_NAME = re.compile(rf"(?:{_SCALARS})[234]")
_VECTOR_ALIAS = re.compile(
    rf"(?:using\s+(\w+)\s*=\s*|typedef\s+)(?:metal::)?"
    rf"(?:vec\s*<[^;]*>|(?:{_SCALARS})[234])(?(1)|\s+(\w+))\s*;"
)
_FLOAT = re.compile(r"((?!0[xX])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)(h|bf)?")
_SUFFIXED = re.compile(r"(\d+)(h|bf)")  # 1h
_THREADGROUP_ATTRIBUTE = re.compile(r"\[\[\s*threadgroup\(\d+\)\s*\]\]")
_METAL_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>.*$", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*$', re.MULTILINE)
_COMPUTED = {  # thread attributes that follow from others
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "dispatch_simdgroups_per_threadgroup": "ids->simdgroups_per_threadgroup",
    "thread_index_in_quadgroup": "ids->thread_index_in_threadgroup % 4",
    "quadgroup_index_in_threadgroup": "ids->thread_index_in_threadgroup / 4",
}
_FUNCTION_CONSTANT = re.compile(
    r"constant\s+([\w:]+)\s+(\w+)\s*\[\[\s*function_constant\(\s*\w+\s*\)\s*\]\]\s*;"
)


def rewrite(text: str, dialect: str) -> tuple[str, list[str]]:
    """`text` in `dialect`, line for line, and the names of its threadgroup arrays in order."""
    text = _THREADGROUP_ATTRIBUTE.sub("", _METAL_INCLUDE.sub("", text))
    tokens = [_literal(token) for token in tokenize(text)]
    tokens = _constructors(tokens, {a or b for a, b in _VECTOR_ALIAS.findall(text)})
    names: list[str] = []
    if dialect != OPENCL:
        tokens = _threadgroup_arrays(tokens, dialect, names)
    return join(tokens), names


def _literal(token: Token) -> Token:
    """1.0 is a float in Metal, 1.0h a half."""
    if token.kind != "number":
        return token
    match = _FLOAT.fullmatch(token.text) or _SUFFIXED.fullmatch(token.text)
    if not match:
        return token
    number = match.group(1) if re.search(r"[.eE]", match.group(1)) else match.group(1) + "."
    kind = {"h": "half", "bf": "bfloat", None: ""}[match.group(2)]
    return Token("number", f"(({kind}){number}f)" if kind else f"{number}f", token.line)


def _constructors(tokens: list[Token], aliases: set[str]) -> list[Token]:
    """float4(a, b) and static_cast<float4>(v) become emu_make<float4>(…)."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        end = _vector_type(tokens, i, aliases)
        after = skip_space(tokens, end) if end else 0
        if end and after < len(tokens) and tokens[after].text == "(" and not _declares(out):
            out.append(Token("name", f"metal::emu_make<{join(tokens[i:end])}>", token.line))
            i = end
        elif token.text == "static_cast" and (end := _cast_to_vector(tokens, i, aliases)):
            inside = join(tokens[skip_space(tokens, i + 1) : end])
            out.append(Token("name", f"metal::emu_make{inside}", token.line))
            i = end
        else:
            out.append(token)
            i += 1
    return out


def _declares(before: list[Token]) -> bool:
    """Does what stands before a type make `T (` something else than a construction?"""
    last = next((t for t in reversed(before) if t.kind != "space"), None)
    return last is not None and last.text in ("operator", "typename")


def _vector_type(tokens: list[Token], at: int, aliases: set[str]) -> int:
    """The index after the vector type that begins at `at`; 0 when none does."""
    token = tokens[at]
    if token.kind != "name":
        return 0
    if token.text == "metal" and at + 2 < len(tokens) and tokens[at + 1].text == "::":
        return _vector_type(tokens, at + 2, aliases)
    if _VECTOR_NAME.fullmatch(token.text) or token.text in aliases:
        return at + 1
    if token.text == "vec":
        opening = skip_space(tokens, at + 1)
        if opening < len(tokens) and tokens[opening].text == "<":
            return closing_angle(tokens, opening) + 1
    return 0


def _cast_to_vector(tokens: list[Token], at: int, aliases: set[str]) -> int:
    opening = skip_space(tokens, at + 1)
    if opening >= len(tokens) or tokens[opening].text != "<":
        return 0
    end = closing_angle(tokens, opening)
    first = skip_space(tokens, opening + 1)
    type_end = _vector_type(tokens, first, aliases)
    return end + 1 if type_end and skip_space(tokens, type_end) == end else 0


def _threadgroup_arrays(tokens: list[Token], dialect: str, names: list[str]) -> list[Token]:
    """Declarations of threadgroup memory become arena references, or static variables."""
    out: list[Token] = []
    depth, i = 0, 0
    while i < len(tokens):
        token = tokens[i]
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        end = _statement(tokens, i) if token.text == "threadgroup" and depth == 0 else 0
        parsed = _declaration(tokens[i + 1 : end]) if end else None
        if parsed is None:
            out.append(token)
            i += 1
            continue
        kind, variables = parsed
        text = "".join(_declare(kind, name, dims, dialect, names) for name, dims in variables)
        text += "\n" * join(tokens[i:end]).count("\n")
        out.append(Token("other", text, token.line))
        i = end + 1
    return out


def _statement(tokens: list[Token], at: int) -> int:
    """The index of the `;` that ends the declaration at `at`; 0 when something else comes."""
    for i in range(at, len(tokens)):
        if tokens[i].text in ("{", "}", "=", "*", "(", ")") and not _in_brackets(tokens, at, i):
            return 0
        if tokens[i].text == ";":
            return i
    return 0


def _in_brackets(tokens: list[Token], start: int, at: int) -> bool:
    depth = 0
    for token in tokens[start:at]:
        depth += {"[": 1, "]": -1, "<": 1, ">": -1}.get(token.text, 0)
    return depth > 0


def _declaration(tokens: list[Token]) -> tuple[str, list[tuple[str, str]]] | None:
    """(type, [(name, dims), …]) of `T a[2], b`; None when it is no such declaration."""
    first = next((i for i, t in enumerate(tokens) if t.text == "["), len(tokens))
    head = [i for i, t in enumerate(tokens[:first]) if t.kind != "space"]
    comma = next((i for i in head if tokens[i].text == ","), None)
    if comma is not None and "<" not in join(tokens[:comma]):
        head = [i for i in head if i < comma]
    if len(head) < 2 or tokens[head[-1]].kind != "name":
        return None
    kind = join(tokens[: head[-1]]).strip()
    variables, i = [], head[-1]
    while i < len(tokens):
        name, i = tokens[i].text, skip_space(tokens, i + 1)
        dims = ""
        while i < len(tokens) and tokens[i].text == "[":
            end = closing(tokens, i)
            dims += join(tokens[i : end + 1])
            i = skip_space(tokens, end + 1)
        variables.append((name, dims))
        i = skip_space(tokens, i + 1)  # past a comma
    return kind, variables


def _declare(kind: str, name: str, dims: str, dialect: str, names: list[str]) -> str:
    if dialect == CXX:
        return f"static threadgroup {kind} {name}{dims};"
    names.append(name)
    return f"auto& {name} = metal::emu_threadgroup<{kind}{dims}>({len(names) - 1});"


def set_function_constants(text: str, values: dict[str, object]) -> str:
    """`constant bool x [[function_constant(0)]];` becomes a constant with the value given."""

    def value(match: re.Match) -> str:
        kind, name = match.groups()
        given = values.get(name, False)
        spelled = str(given).lower() if isinstance(given, bool) else str(given)
        return f"constant {kind} {name} = {spelled};"

    return _FUNCTION_CONSTANT.sub(value, text)


def flatten(path: str, roots: list[Path], seen: set[str] | None = None) -> str:
    """The text of a header with every `#include "…"` of it in place, each once.

    The first root that has the file wins. Raises FileNotFoundError when none has.
    """
    seen = set() if seen is None else seen
    if path in seen:
        return ""
    seen.add(path)
    file = next((root / path for root in roots if (root / path).exists()), None)
    if file is None:
        raise FileNotFoundError(f"no header {path} in {', '.join(map(str, roots))}")
    text = file.read_text().replace("#pragma once", "")
    parts, at = [f'#line 1 "{file.name}"\n'], 0
    for match in _INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        parts += [text[at : match.start()], flatten(match.group(1), roots, seen)]
        parts.append(f'\n#line {line} "{file.name}"')
        at = match.end()
    return "".join([*parts, text[at:], "\n"])


def entry_point(signature: Signature) -> str:
    """What the runtime calls: it hands buffers and thread attributes to the kernel."""
    arguments, buffer = [], 0
    for i, parameter in enumerate(signature.parameters):
        kind = f"emu_kernel::argument<{i}>"
        if parameter.attribute == "buffer":
            arguments.append(f"emu_pass<{kind}>::buffer(buffers[{buffer}])")
            buffer += 1
        else:
            value = _COMPUTED.get(parameter.attribute, f"ids->{parameter.attribute}")
            arguments.append(f"emu_pass<{kind}>::id({value})")
    return (
        '#line 1 "entry"\n#include "entry.h"\n'
        f"using emu_kernel = emu_function<decltype({signature.call})>;\n"
        'extern "C" void emu_entry(void** buffers, const emu_ids* ids) {\n'
        f"  {signature.call}({', '.join(arguments)});\n}}\n"
    )


def opencl_kernel(signature: Signature, body: str) -> str:
    """The kernel as C++ for OpenCL has it: no template, no attributes, buffers of bytes."""
    parameters, locals_ = [], []
    for p in signature.parameters:
        if p.attribute != "buffer":
            parameters.append(p.declaration)
            continue
        space = " ".join(w for w in ("const", "device", "constant") if w in p.declaration.split())
        parameters.append(f"{space} uchar* emu_{p.name}")
        kind = p.declaration.removesuffix(p.name)
        value = f"({kind.replace('&', '*')})emu_{p.name}"
        locals_.append(f"{p.declaration} = {'*' if '&' in kind else ''}{value};")
    for kind, name, argument in signature.template:
        typed = kind in ("typename", "class")
        locals_.append(
            f"using {name} = {argument};" if typed else f"constexpr {kind} {name} = {argument};"
        )
    return (
        f"__kernel void {signature.name}({', '.join(parameters)}) {{ {' '.join(locals_)}\n"
        f"{body}\n}}\n"
    )
