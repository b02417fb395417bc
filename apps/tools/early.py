"""The arguments of a long call, told while they come.

What is told cannot be taken back, and a call may still turn out to be none. So a call is held back
until its arguments are long enough for somebody to wait for them, what is told is always the
beginning of a JSON object, and the brace that closes it comes when the call is known to be whole:
of one that breaks off, nobody gets arguments that look complete.
"""

import json
import re

from .calls import Call

HELD = 256  # characters of arguments until a call is told; a shorter one is told whole
_OPENING = 512  # characters that may come before the arguments

# Of a call in JSON, what comes before its arguments.
JSON_OPENING = (
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)

_SPACE = re.compile(r"[ \t\r\n]*")
_CHARS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_CONTROL = re.compile(r"[\x00-\x1f]")
_SCALAR = re.compile(
    r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?=[ \t\r\n,\]}])"
)


class EarlyCall:
    """The call that begins at `start` of a text, as far as it is known; `opening` is its format's.

    `call` is there once it may be told, and `at` is how far it has been.
    """

    def __init__(self, opening: re.Pattern[str], start: int) -> None:
        self._opening, self._start = opening, start
        self.call: Call | None = None
        self.at = start
        self._arguments: ObjectPrefix | None = None
        self._held = ""

    def more(self, text: str, end: int) -> str:
        """What can be told of the arguments in text[:end] beyond what has been."""
        if self._arguments is None:
            found = self._opening.match(text, self._start, min(end, self._start + _OPENING))
            if found is None:
                return ""
            self._named, self._arguments = found.groupdict(), ObjectPrefix(found.end())
        self._held += self._arguments.take(text, end)
        if self.call is None:
            if len(self._held) < HELD:
                return ""
            self.call = Call(self._named["name"].strip(), "", self._named.get("id"))
        told, self._held, self.at = self._held, "", self._arguments.at
        return told


class ObjectPrefix:
    """How far the text of a JSON object is one, `at` beginning with its brace.

    The brace that closes it is never gone past.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self._closing: list[str] = []  # the brackets that close those that are open
        self._next = "value"  # or "key", "colon", "comma": what may come
        self._just_opened = False  # a bracket may close at once
        self._quoted = False

    def take(self, text: str, end: int) -> str:
        """What is certain of text[:end] beyond what was; control characters in strings, which JSON
        does not have, are escaped.
        """
        taken = []
        while piece := self._quote(text, end) if self._quoted else self._token(text, end):
            taken.append(piece)
        return "".join(taken)

    def _quote(self, text: str, end: int) -> str:
        """More of a string, or the mark that ends it."""
        start, self.at = self.at, _CHARS.match(text, self.at, end).end()
        if start == self.at < end and text[start] == '"':
            self.at, self._quoted = start + 1, False
            return '"'
        return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text[start : self.at])

    def _token(self, text: str, end: int) -> str:
        """The next token and the white space before it; "" when it is none, or not yet certain."""
        start, place = self.at, _SPACE.match(text, self.at, end).end()
        self.at = place
        if place == end or not self._takes(text, end):
            return text[start:place]
        self._just_opened = text[place] in "{["
        return text[start : self.at]

    def _takes(self, text: str, end: int) -> bool:
        """Go past the token that comes next, if it may."""
        char, awaited, stack = text[self.at], self._next, self._closing
        if char == '"' and awaited in ("value", "key"):
            self._quoted, self._next = True, "comma" if awaited == "value" else "colon"
        elif char in "{[" and awaited == "value":
            stack.append("}" if char == "{" else "]")
            self._next = "key" if char == "{" else "value"
        elif char in "}]" and stack[-1] == char and (awaited == "comma" or self._just_opened):
            if len(stack) == 1:
                return False
            stack.pop()
            self._next = "comma"
        elif char == ":" and awaited == "colon":
            self._next = "value"
        elif char == "," and awaited == "comma":
            self._next = "key" if stack[-1] == "}" else "value"
        elif awaited == "value" and (scalar := _SCALAR.match(text, self.at, end)):
            self.at, self._next = scalar.end(), "comma"
            return True
        else:
            return False
        self.at += 1
        return True
