"""Telling the parts of a reply apart while it arrives."""

from typing import Protocol

from ..reasoning import Reasoning, ReasoningSplitter
from ..tools import Content, ToolParser
from .content import Part


class Parser(Protocol):
    """Takes the text of one reply."""

    def feed(self, text: str) -> list[Part]:
        """The parts that have become certain with `text`."""

    def finish(self) -> list[Part]:
        """The rest; the reply has ended."""


class PlainParser:
    """All of the reply is its answer."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class ReplyParser:
    """Thinking, then text and calls, as far as the model's template has them."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: ToolParser | None) -> None:
        self._splitter, self._calls = splitter, calls

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        return self._parts(self._splitter.feed(text) if self._splitter else [Content(text)])

    def finish(self) -> list[Part]:
        parts = self._parts(self._splitter.finish() if self._splitter else [])
        return parts + self._calls.finish() if self._calls else parts

    def _parts(self, events: list[Reasoning | Content]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            looked_through = self._calls and isinstance(event, Content)
            parts += self._calls.feed(event.text) if looked_through else [event]
        return parts
