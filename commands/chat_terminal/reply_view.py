"""Shows a reply as it comes: the thinking folded into a line, the answer as light Markdown."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ...apps.chat import ReplyChunk
from .markdown import MarkdownStream
from .screen import Screen


class ReplyView:
    """One reply on the screen; `finish` ends its last line."""

    def __init__(self, screen: Screen, settings: Mapping[str, str]) -> None:
        self._screen, self._folds = screen, settings["think"] == "fold"
        self._markdown = None
        if screen.is_styled and settings["markdown"] == "on":
            self._markdown = MarkdownStream(screen.write, lambda: screen.width, screen.bullet)
        self._thinks = False
        self._tokens = 0  # of the thinking
        self._answers = False

    def add(self, chunk: ReplyChunk) -> None:
        """Show one piece."""
        if chunk.reasoning:
            self._thinks, self._tokens = True, chunk.reasoning_tokens
            if self._folds:
                self._screen.status(f"thinking … {self._tokens:,} tokens")
            else:
                self._screen.write(chunk.reasoning, "dim")
        if chunk.text:
            self._end_thinking()
            self.answer(chunk.text)

    def finish(self) -> None:
        """Show what was held back, and end the line."""
        self._end_thinking()
        if self._markdown is not None:
            self._markdown.finish()
        if self._answers:
            self._screen.write("\n")

    def answer(self, text: str) -> None:
        """Show a piece of the answer."""
        self._answers = True
        if self._markdown is not None:
            self._markdown.feed(text)
        else:
            self._screen.write(text)

    def _end_thinking(self) -> None:
        if not self._thinks:
            return
        self._thinks = False
        if not self._folds:
            self._screen.write("\n")
        self._screen.note(f"(thought for {self._tokens:,} tokens)")


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Inside, what is typed is not echoed into the reply; the next prompt gets it."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):  # Windows, or no terminal
        yield
        return
    except termios.error:
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
