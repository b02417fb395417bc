"""A text that arrives in pieces, read from left to right.

Methods that have to see more are generators: they yield to be continued when there is more text, or
none will come. How the text was cut into pieces has no influence on what they find.
"""

import re
from collections.abc import Collection, Generator
from typing import TypeVar

from .calls import Malformed

T = TypeVar("T")
Waiting = Generator[None, None, T]

_OUTSIDE = re.compile(r"[\"'(\[{)\]}]")
_WITHIN = {quote: re.compile(rf"[\\{quote}]") for quote in "\"'"}


class Scanner:
    """`text` so far, the place `at` in it, and whether it has `ended`."""

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False

    def cut(self) -> None:
        """Forget what has been read."""
        self.text, self.at = self.text[self.at :], 0

    def skip(self, chars: str = " \t\r\n") -> Waiting[None]:
        """Go past any of `chars`."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in chars:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return
            yield

    def peek(self) -> Waiting[str]:
        """The next character; "" at the end."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def takes(self, expected: str) -> Waiting[bool]:
        """Go past `expected` if it comes next."""
        while True:
            found = self.text[self.at : self.at + len(expected)]
            if found == expected:
                self.at += len(expected)
                return True
            if self.ended or not expected.startswith(found):
                return False
            yield

    def literal(self, expected: str) -> Waiting[None]:
        """Go past `expected`. Raises Malformed if it does not come next."""
        if not (yield from self.takes(expected)):
            raise Malformed(f"no {expected}")

    def until(self, mark: str) -> Waiting[str]:
        """What comes before `mark`, and go past both. Raises Malformed if there is none."""
        start = searched = self.at
        while (found := self.text.find(mark, searched)) < 0:
            if self.ended:
                self.at = len(self.text)
                raise Malformed(f"no {mark}")
            searched = max(start, len(self.text) - len(mark) + 1)
            yield
        self.at = found + len(mark)
        return self.text[start:found]

    def word(self, end: str) -> Waiting[str]:
        """The characters up to white space or one of `end`. Raises Malformed if there are none."""
        start = place = self.at
        while True:
            while place < len(self.text) and not (
                self.text[place].isspace() or self.text[place] in end
            ):
                place += 1
            if place < len(self.text) or self.ended:
                break
            yield
        if place == start:
            raise Malformed("no name")
        self.at = place
        return self.text[start:place]

    def bracketed(self, opening: str, quotes: str = '"') -> Waiting[str]:
        """From `opening`, a bracket, to the bracket that closes it, with those within `quotes` left
        out of account. Raises Malformed if either is missing.
        """
        if (yield from self.peek()) != opening:
            raise Malformed(f"no {opening}")
        place, depth, quote = self.at, 0, ""
        while True:
            match = (_WITHIN[quote] if quote else _OUTSIDE).search(self.text, place)
            if match is None:
                if self.ended:
                    self.at = len(self.text)
                    raise Malformed("not closed")
                place = max(place, len(self.text))
                yield
                continue
            char, place = match.group(), match.end()
            if quote:
                place += char == "\\"  # and what it escapes
                quote = "" if char == quote else quote
            elif char in "\"'":
                quote = char if char in quotes else ""
            elif char in "([{":
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    start, self.at = self.at, place
                    return self.text[start:place]

    def closing(self, *marks: str, following: str) -> Waiting[None]:
        """Go past white space and one of `marks`, which may be left out at the end of the text and
        before the next call, which begins with `following`. Raises Malformed otherwise.
        """
        start = self.at
        yield from self.skip()
        for mark in marks:
            if (yield from self.takes(mark)):
                return
        place = self.at
        if (yield from self.peek()) == "":
            self.at = start
        elif (yield from self.takes(following)):
            self.at = place
        else:
            raise Malformed(f"no {marks[0]}")


def open_end(text: str, at: int, marks: Collection[str]) -> int:
    """Where the longest end of `text` begins that a mark could begin with; len(text) if none."""
    longest = max(map(len, marks), default=1) - 1
    for start in range(max(at, len(text) - longest), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)
