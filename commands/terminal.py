"""What the chat reads from stdin where it is a pipe, and Ctrl-C that stops a reply."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .console import decode


def piped_turns() -> Iterator[str]:
    """The lines of stdin until its end; empty ones are passed over.

    Raises InputError for a line that is no text.
    """
    for line in sys.stdin.buffer:
        text = decode(line.rstrip(b"\r\n"), "message")
        if text.strip():
            yield text


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C makes the yielded function answer True, the second one raises."""
    asked = False

    def ask(_: int, __: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
