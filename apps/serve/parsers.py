"""Telling the parts of a reply apart while it arrives."""

import json
from collections.abc import Callable
from typing import Protocol

from ..reasoning import Reasoning, ReasoningSplitter
from ..tools import Content, ToolCall, ToolParser
from .content import CallArguments, CallStart, Part, Text, Thought


class Parser(Protocol):
    """Takes the text of one reply."""

    def feed(self, text: str) -> list[Part]:
        """The parts that have become certain with `text`."""

    def finish(self) -> list[Part]:
        """The rest; the reply has ended."""


class PlainParser:
    """All of the reply is its answer."""

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class ReplyParser:
    """Thinking, then text and calls, as far as the model's template has them."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: ToolParser | None) -> None:
        self._splitter, self._calls = splitter, calls

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        events = self._splitter.feed(text) if self._splitter else [Content(text)]
        return [part for event in events for part in self._parts(event)]

    def finish(self) -> list[Part]:
        events = self._splitter.finish() if self._splitter else []
        parts = [part for event in events for part in self._parts(event)]
        if self._calls:
            parts += [part for event in self._calls.finish() for part in _as_parts(event)]
        return parts

    def _parts(self, event: Reasoning | Content) -> list[Part]:
        if isinstance(event, Reasoning):
            return [Thought(event.text)]
        events = self._calls.feed(event.text) if self._calls else [event]
        return [part for found in events for part in _as_parts(found)]


class ForcedCall:
    """A reply that is held to be one call, {"name": …, "arguments": …}.

    One that is cut off before its end is text.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id, self._text = new_id, ""

    def feed(self, text: str) -> list[Part]:
        self._text += text
        return []

    def finish(self) -> list[Part]:
        try:
            call = json.loads(self._text)
        except ValueError:
            return [Text(self._text)] if self._text else []
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return _as_parts(ToolCall(0, self._new_id(), call["name"], arguments))


def _as_parts(event: Content | ToolCall) -> list[Part]:
    if isinstance(event, Content):
        return [Text(event.text)]
    start = CallStart(event.index, event.id, event.name)
    return [start, CallArguments(event.index, event.arguments)]
