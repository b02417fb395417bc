"""Finds calls of tools in a reply that arrives in pieces."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .calls import Call, CallArguments, CallStart, Content, Event, Malformed
from .early import EarlyCall
from .scanner import Scanner, Waiting, open_end

if TYPE_CHECKING:
    from .format import ToolFormat


class ToolParser:
    """Takes the text of one reply, gives its events; however the text is cut, they are the same,
    but for where one `Content` ends and the next begins, or one `CallArguments`.

    What is no call, or a malformed one, or names a tool that was not offered, is content, to the
    letter. White space between text and a call, or two calls, belongs to neither.
    """

    def __init__(
        self,
        format: "ToolFormat",
        tools: Sequence[Mapping[str, Any]],
        early: bool,
        new_id: Callable[[], str],
    ) -> None:
        """`tools` as in a request to OpenAI; with none, every name is taken.

        With `early`, the arguments of a long call are told while they come (`EarlyCall`): of one
        that turns out to be malformed then, the rest is content.
        """
        self._format, self._new_id = format, new_id
        self._opening = format.opening if early else None
        self._tools = {tool["name"]: tool for tool in map(_function, tools)}
        self._scanner = Scanner()
        self._events: list[Event] = []
        self._calls = 0
        self._early: EarlyCall | None = None  # in the block that is being read
        self._space = ""  # said when text follows
        self._fresh = True  # nothing was said since the beginning or a call
        self._work = self._run()

    def feed(self, text: str) -> list[Event]:
        """The events that have become certain with the next piece of text."""
        self._scanner.text += text
        return self._go_on()

    def finish(self) -> list[Event]:
        """The last events; the text has ended."""
        self._scanner.ended = True
        events = self._go_on()
        if self._space and not (self._fresh and self._calls):
            self._events.append(Content(self._space))
            events += self._take()
        self._space = ""
        return _merged(events)

    def _go_on(self) -> list[Event]:
        next(self._work, None)
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return _merged(events)

    def _run(self) -> Waiting[None]:
        scanner = self._scanner
        while (yield from self._seek()):
            start = scanner.at
            self._early = EarlyCall(self._opening, start) if self._opening else None
            try:
                calls = yield from self._block()
                self._check(calls)
            except Malformed:
                scanner.at = max(scanner.at, start + 1)
                told = self._tell(scanner.at)
                self._say(scanner.text[self._early.at if told else start : scanner.at])
                continue
            if self._tell(scanner.at):
                self._events.append(CallArguments(self._calls - 1, "}"))
                calls = calls[1:]
            self._space, self._fresh = "", True
            for call in calls:
                self._begin(call)
                self._events.append(CallArguments(self._calls - 1, call.arguments))

    def _block(self) -> Waiting[list[Call]]:
        """The calls of the block that begins here, what can be told early being told."""
        block = self._format.block(self._scanner, self._tools)
        while True:
            try:
                next(block)
            except StopIteration as done:
                return done.value
            self._tell(len(self._scanner.text))
            yield

    def _tell(self, end: int) -> bool:
        """Tell early what can be of the text up to `end`; whether anything has been."""
        early = self._early
        if early is None:
            return False
        begun, told = early.call is not None, early.more(self._scanner.text, end)
        if early.call is None or (self._tools and early.call.name not in self._tools):
            return False
        if not begun:
            self._space, self._fresh = "", True
            self._begin(early.call)
        if told:
            self._events.append(CallArguments(self._calls - 1, told))
        return True

    def _begin(self, call: Call) -> None:
        """Number a call, and tell its name."""
        call_id = call.id if self._format.takes_id(call.id) else self._new_id()
        self._events.append(CallStart(self._calls, call_id, call.name))
        self._calls += 1

    def _seek(self) -> Waiting[bool]:
        """Stand where the next call may begin, having said what comes before; False at the end."""
        scanner, format = self._scanner, self._format
        while True:
            if format.bare and self._fresh:
                start = scanner.at
                yield from scanner.skip(" \t\r\n;" if self._calls else " \t\r\n")
                self._space += scanner.text[start : scanner.at]
                if (yield from scanner.peek()) == format.bare:
                    return True
            text, at = scanner.text, scanner.at
            found = [place for mark in format.begins if (place := text.find(mark, at)) >= 0]
            if found:
                scanner.at = min(found)
                self._say(text[at : scanner.at])
                return True
            scanner.at = len(text) if scanner.ended else open_end(text, at, format.begins)
            self._say(text[at : scanner.at])
            scanner.cut()
            if scanner.ended:
                return False
            yield

    def _check(self, calls: list[Call]) -> None:
        if not calls or (self._tools and not all(call.name in self._tools for call in calls)):
            raise Malformed("no such tool")

    def _say(self, text: str) -> None:
        whole = self._space + text
        said = whole.rstrip()
        self._space = whole[len(said) :]
        if said:
            self._fresh = False
            self._events.append(Content(said))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's name and parameters, which may stand under "function"."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _merged(events: list[Event]) -> list[Event]:
    merged: list[Event] = []
    for event in events:
        if merged and isinstance(event, Content) and isinstance(merged[-1], Content):
            merged[-1] = Content(merged[-1].text + event.text)
        else:
            merged.append(event)
    return merged
