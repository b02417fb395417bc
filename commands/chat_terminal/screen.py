"""What the chat writes to the terminal: text as it comes, notes in dim letters.

Nothing that has been written is ever moved or written again, so that the terminal's own scrolling
and reflow are right whenever it is resized. The one exception is the status line, which is shorter
than a row and the last thing on the screen.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.text import Text

from ..console import shown

_CLEAR_ROW = "\r\x1b[2K"


class Screen:
    """The terminal at stdout; where stdout is none, the reply goes there and the rest to stderr."""

    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self.is_terminal = self._out.isatty()
        plain = os.environ.get("TERM", "dumb") == "dumb" and sys.platform != "win32"
        self.is_styled = self.is_terminal and not plain
        self._console = Console(file=self._out, highlight=False, markup=False, emoji=False)
        self._notes = Console(file=self._err, highlight=False, markup=False, emoji=False)
        self.bullet = "•" if "utf" in (self._console.encoding or "") else "*"
        self._has_status = False

    @property
    def width(self) -> int:
        """Cells of a row, asked of the terminal each time: it may have been resized."""
        with suppress(OSError, ValueError):
            return max(os.get_terminal_size(self._out.fileno()).columns, 1)
        return 80

    def write(self, text: str, style: str = "") -> None:
        """A piece of the reply, as it is."""
        if not self.is_terminal:
            self._out.write(text)
            self._out.flush()
            return
        text = shown(text)
        if self.is_styled:
            self._console.print(Text(text, style), end="", soft_wrap=True)
        else:
            self._out.write(text)
            self._out.flush()

    def note(self, text: str, style: str = "dim") -> None:
        """A line that is not the model's."""
        self.clear_status()
        line = Text(shown(text), style if self.is_styled else "")
        self._notes.print(line, soft_wrap=not self.is_styled)

    def status(self, text: str) -> None:
        """A dim line that `clear_status` or the next call takes away again."""
        if self.is_styled:
            self._out.write(_CLEAR_ROW)
            self.write(text[: self.width - 1], "dim")
            self._has_status = True

    def clear_status(self) -> None:
        """Take the status line away."""
        if self._has_status:
            self._out.write(_CLEAR_ROW)
            self._out.flush()
            self._has_status = False

    def send(self, sequence: str) -> None:
        """A control sequence to the terminal."""
        self._out.write(sequence)
        self._out.flush()


def short_name(model: str) -> str:
    """A model's name; of a path the last part alone."""
    return re.split(r"[/\\]", model.rstrip("/\\"))[-1] if Path(model).is_absolute() else model
