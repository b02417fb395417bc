"""Talking to whoever types: turns from stdin, and Ctrl-C that stops a reply."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from ..runtime.errors import InputError
from .console import check_text, decode, note


def read_turns(prompt: str) -> Iterator[str]:
    """What the user says, line by line, until the end of stdin; empty lines are passed over.

    At a terminal, `prompt` is shown and a line that is no text is asked for again; elsewhere it
    raises InputError.
    """
    lines = _typed(prompt) if sys.stdin.isatty() else _piped()
    for line in lines:
        if line.strip():
            yield line


def _piped() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield decode(line.rstrip(b"\r\n"), "message")


def _typed(prompt: str) -> Iterator[str]:
    if not sys.stdout.isatty():  # `input` would write its prompt into the answer
        sys.stderr.write(prompt)
        prompt = ""
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401  # `input` then edits lines and keeps a history
    while True:
        try:
            yield check_text(input(prompt), "the message")
        except EOFError:
            note("")
            return
        except (UnicodeDecodeError, InputError) as error:
            note(f"not understood: {error}")


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
