"""Static rules for our kernels: what Metal forbids, or what the house does."""

import itertools
import re

from .tokens import Token, closing, tokenize

_FORBIDDEN = {
    "double": "Metal has no double",
    "virtual": "Metal has no virtual functions",
    "goto": "Metal has no goto",
    "throw": "Metal has no exceptions",
    "try": "Metal has no exceptions",
    "new": "Metal has no heap",
    "delete": "Metal has no heap",
    "dynamic_cast": "Metal has no run-time type information",
    "typeid": "Metal has no run-time type information",
    "thread_local": "Metal has no thread_local",
    "std": "Metal has no std::",
}
_CONTROL = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype"}
_SPACES = {"device", "constant", "threadgroup", "thread"}
_FLOAT = re.compile(r"(?!0[xX])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")


def lint(source: str) -> list[tuple[int, str]]:
    """The faults of a kernel body or header as (line, message)."""
    tokens = [token for token in tokenize(source) if token.kind != "space"]
    faults = []
    for i, token in enumerate(tokens):
        if token.kind == "name" and token.text in _FORBIDDEN:
            faults.append((token.line, f"`{token.text}`: {_FORBIDDEN[token.text]}"))
        elif token.kind == "number" and _needs_suffix(token.text):
            faults.append((token.line, f"`{token.text}` is a double: write `{token.text}f`"))
        elif token.text == "[" and _is_lambda(tokens, i):
            faults.append((token.line, "a lambda: Metal 3.1 has none"))
    faults += _recursion(tokens)
    faults += _unqualified_parameters(tokens)
    return sorted(faults)


def _needs_suffix(number: str) -> bool:
    return bool(_FLOAT.fullmatch(number))


def _is_lambda(tokens: list[Token], at: int) -> bool:
    before = tokens[at - 1] if at else None
    if before and (before.kind in ("name", "number") or before.text in (")", "]", "[")):
        return before.text == "return" and not _is_attribute(tokens, at)
    end = closing(tokens, at)
    after = tokens[end + 1].text if end + 1 < len(tokens) else ""
    return after in ("(", "{") and not _is_attribute(tokens, at)


def _is_attribute(tokens: list[Token], at: int) -> bool:
    return at + 1 < len(tokens) and tokens[at + 1].text == "["


def _functions(tokens: list[Token]) -> list[tuple[Token, list[Token], list[Token]]]:
    """(name, parameters, body) of each function defined in the source."""
    found = []
    for i, token in enumerate(tokens[:-1]):
        if token.kind != "name" or token.text in _CONTROL or tokens[i + 1].text != "(":
            continue
        end = closing(tokens, i + 1)
        after = end + 1
        while after < len(tokens) and tokens[after].text in ("const", "thread", "noexcept"):
            after += 1
        typed = i > 0 and (tokens[i - 1].kind == "name" or tokens[i - 1].text in (">", "*", "&"))
        if typed and after < len(tokens) and tokens[after].text == "{":
            body = tokens[after : closing(tokens, after)]
            found.append((token, tokens[i + 2 : end], body))
    return found


def _recursion(tokens: list[Token]) -> list[tuple[int, str]]:
    functions = _functions(tokens)
    names = [name.text for name, _, _ in functions]
    calls = {}
    for name, _, body in functions:
        if names.count(name.text) == 1:  # overloads may call one another
            calls[name.text] = {
                token.text
                for token, after in itertools.pairwise(body)
                if after.text in ("(", "<") and token.text in names
            }
    faults = []
    for name, _, _ in functions:
        reached, todo = set(), list(calls.get(name.text, ()))
        while todo:
            callee = todo.pop()
            if callee not in reached:
                reached.add(callee)
                todo += calls.get(callee, ())
        if name.text in reached:
            faults.append((name.line, f"`{name.text}` calls itself: Metal has no recursion"))
    return faults


def _unqualified_parameters(tokens: list[Token]) -> list[tuple[int, str]]:
    """Pointer and reference parameters that name no address space."""
    faults = []
    for name, parameters, _ in _functions(tokens):
        part: list[Token] = []
        depth = 0  # of template arguments
        for token in [*parameters, Token("other", ",", name.line)]:
            depth += token.text.count("<") - token.text.count(">")
            if token.text != "," or depth:
                part.append(token)
                continue
            texts = {t.text for t in part}
            if texts & {"*", "&"} and not texts & _SPACES:
                faults.append((part[0].line, f"a pointer of `{name.text}` names no address space"))
            part = []
    return faults
