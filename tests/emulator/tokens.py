"""A tokenizer for Metal source, just enough to rewrite and to lint it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|\\\n)+)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\w*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<other>::|->|&&|\|\||<<=|>>=|[-+*/%&|^=!<>]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Token:
    kind: str  # space, string, number, name, other
    text: str
    line: int  # from 1


def tokenize(source: str) -> list[Token]:
    """The tokens of `source`; a comment becomes a space that keeps its line ends."""
    tokens, line = [], 1
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup or "other", match.group()
        if kind == "comment":
            kind, text = "space", "\n" * text.count("\n") or " "
        tokens.append(Token(kind, text, line))
        line += text.count("\n")
    return tokens


def join(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def skip_space(tokens: list[Token], at: int) -> int:
    """The first index from `at` on that is no space."""
    while at < len(tokens) and tokens[at].kind == "space":
        at += 1
    return at


def closing(tokens: list[Token], at: int) -> int:
    """The index of the bracket that closes the one at `at`, or the end."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].text in _OPENING:
            depth += 1
        elif tokens[i].text in _CLOSING:
            depth -= 1
            if depth == 0:
                return i
    return len(tokens)


def closing_angle(tokens: list[Token], at: int) -> int:
    """The index of the `>` that closes the template argument list at `at`; -1 if it is none."""
    depth, i = 0, at
    while i < len(tokens) and tokens[i].text not in (";", "{", "}"):
        text = tokens[i].text
        if text in _OPENING:
            i = closing(tokens, i)
        elif text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1


def split(tokens: list[Token]) -> Iterator[list[Token]]:
    """The parts between the commas that lie in no bracket and no template argument list."""
    part: list[Token] = []
    depth = 0
    for token in tokens:
        if token.text in "([{<":
            depth += 1
        elif token.text in ")]}>":
            depth -= 1
        if token.text == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    if any(token.kind != "space" for token in part):
        yield part
