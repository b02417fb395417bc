"""The thinking part of a reply, told apart from the answer while both arrive.

    marks = find_marks(tokenizer.chat_template)
    splitter = marks.splitter(prompt)  # the prompt's text, which may begin the thinking itself
    for chunk in generator.stream(…, shown=marks.shown):
        for event in splitter.feed(chunk.text): …
    for event in splitter.finish(): …

An event is a `Reasoning(text)` or a `Content(text)`. Calls of tools are looked for in the content,
so that one which is only thought of is none.
"""

from dataclasses import dataclass

from ..runtime.chat_template import ChatTemplate
from .tools.calls import Content
from .tools.scanner import Scanner, Waiting, open_end


@dataclass(frozen=True)
class Reasoning:
    """A piece of the thinking part."""

    text: str


Event = Reasoning | Content


@dataclass(frozen=True)
class Marks:
    """What a model writes around its thinking."""

    begin: str
    end: str
    headers: tuple[str, ...] = ()  # what may stand before the answer, and is no part of it
    shown: tuple[str, ...] = ()  # special tokens that the splitter has to see in the text

    def splitter(self, prompt: str = "") -> "ReasoningSplitter":
        """A splitter for the reply to `prompt`, as the template wrote it."""
        return ReasoningSplitter(self, opened=prompt.rstrip().endswith(self.begin))


_HARMONY = "<|channel|>final<|message|>"
_KNOWN = (
    Marks("<think>", "</think>", shown=("<think>", "</think>")),
    Marks("[THINK]", "[/THINK]", shown=("[THINK]", "[/THINK]")),
    Marks("<seed:think>", "</seed:think>", shown=("<seed:think>", "</seed:think>")),
    Marks(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        shown=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    Marks(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        headers=(f"<|start|>assistant{_HARMONY}", _HARMONY),
        shown=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
    ),
)


def find_marks(template: ChatTemplate | None) -> Marks | None:
    """The marks that a chat template knows; None for a model that does not think aloud."""
    if template is None:
        return None
    source = "\n".join(template.sources.values())
    for marks in _KNOWN:
        # some templates only cut earlier thinking, at its end
        if marks.begin in source or (marks.end in source and not marks.headers):
            return marks
    return None


class ReasoningSplitter:
    """Takes the text of one reply, gives its events; however the text is cut, they are the same,
    but for where one event ends and the next of its kind begins.

    Thinking stands at the beginning; the marks, and white space beside them, belong to neither
    part. A reply that is cut off while thinking has no content; one without marks is content, to
    the letter.
    """

    def __init__(self, marks: Marks, *, opened: bool = False) -> None:
        """`opened`: the prompt ends with the mark that begins the thinking."""
        self._marks, self._opened = marks, opened
        self._scanner = Scanner()
        self._events: list[Event] = []
        self._work = self._run()

    def feed(self, text: str) -> list[Event]:
        """The events that have become certain with the next piece of text."""
        self._scanner.text += text
        next(self._work, None)
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The last events; the text has ended."""
        self._scanner.ended = True
        return self.feed("")

    def _run(self) -> Waiting[None]:
        scanner, marks = self._scanner, self._marks
        yield from scanner.skip()
        # a model may write the mark that its prompt has already
        if (yield from scanner.takes(marks.begin)) or self._opened:
            yield from self._think()
            yield from scanner.skip()
            scanner.cut()
        for header in marks.headers:
            if (yield from scanner.takes(header)):
                scanner.cut()
                break
        else:
            scanner.at = 0  # white space before an answer without marks is part of it
        while True:
            if text := scanner.text[scanner.at :]:
                self._events.append(Content(text))
            scanner.at = len(scanner.text)
            scanner.cut()
            yield

    def _think(self) -> Waiting[None]:
        """Go past the thinking and the mark that ends it."""
        scanner, end = self._scanner, self._marks.end
        yield from scanner.skip()
        while True:
            scanner.cut()
            found = scanner.text.find(end)
            if found >= 0:
                self._reason(scanner.text[:found].rstrip())
                scanner.at = found + len(end)
                return
            if scanner.ended:
                self._reason(scanner.text.rstrip())
                scanner.at = len(scanner.text)
                return
            scanner.at = len(scanner.text[: open_end(scanner.text, 0, (end,))].rstrip())
            self._reason(scanner.text[: scanner.at])
            yield

    def _reason(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))
