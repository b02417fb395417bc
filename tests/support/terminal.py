"""A program in a terminal that the test looks at: what is on the screen, and what was written."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pexpect
import pyte

CTRL_C, CTRL_D, CTRL_R, CTRL_X, CTRL_E = "\x03", "\x04", "\x12", "\x18", "\x05"
ENTER, TAB, UP, ALT_ENTER = "\r", "\t", "\x1b[A", "\x1b\r"
_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Terminal:
    """Runs `command`, feeds all that it writes to a screen, and waits for text, never for time."""

    def __init__(
        self,
        command: list[str],
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 90,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._timeout = timeout
        self.written = b""
        variables = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | dict(env or {})
        for name in ("NO_COLOR", "COLUMNS", "LINES", "TMUX"):
            if name not in (env or {}):
                variables.pop(name, None)
        self.child = pexpect.spawn(
            command[0], command[1:], env=variables, dimensions=(rows, columns), cwd=cwd
        )

    @property
    def lines(self) -> list[str]:
        """What can be seen, scrolled-off rows first; blank rows at the end left out."""
        above = [
            "".join(row[x].data for x in range(self._screen.columns)).rstrip()
            for row in self._screen.history.top
        ]
        return (
            "\n".join([*above, *(row.rstrip() for row in self._screen.display)])
            .rstrip("\n")
            .split("\n")
        )

    @property
    def text(self) -> str:
        """`lines` in one."""
        return "\n".join(self.lines)

    @property
    def cursor_line(self) -> str:
        """The row that the cursor is in."""
        return self._screen.display[self._screen.cursor.y].rstrip()

    def style_of(self, text: str) -> pyte.screens.Char:
        """The first character of `text` where it is on the screen, with its style."""
        for y, row in enumerate(self._screen.display):
            if (x := row.find(text)) >= 0:
                return self._screen.buffer[y][x]
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text}")

    def wait(self, wanted: str | Callable[["Terminal"], bool]) -> None:
        """Read until `wanted` can be seen, or holds."""
        holds = wanted if callable(wanted) else lambda terminal: wanted in terminal.text
        end = time.monotonic() + self._timeout
        while not holds(self):
            if not self._read(0.2) or time.monotonic() > end:
                if holds(self):
                    return
                raise AssertionError(f"waited in vain for {wanted!r}; the screen was\n{self.text}")

    @property
    def plain(self) -> str:
        """All that was written, without control sequences."""
        text = _CONTROL.sub("", self.written.decode("utf-8", "replace"))
        return text.replace("\r\n", "\n")

    @property
    def is_editing(self) -> bool:
        """Whether the line editor runs: it alone asks for pastes to be marked."""
        return self.written.rfind(b"\x1b[?2004h") > self.written.rfind(b"\x1b[?2004l")

    def prompt(self, text: str = "") -> None:
        """Wait until the line editor shows the prompt with `text`."""
        line = f"> {text}".rstrip()
        self.wait(lambda terminal: terminal.is_editing and terminal.cursor_line == line)

    def send(self, keys: str) -> None:
        """Press keys."""
        self.child.send(keys)

    def enter(self, line: str) -> None:
        """Type a line at the prompt, and wait until the program has it."""
        self.prompt()
        self.send(line)
        self.wait(lambda terminal: terminal.cursor_line.endswith(line[-10:].rstrip()))
        before = len(self.written)
        self.send(ENTER)
        self.wait(lambda terminal: b"\x1b[?2004l" in terminal.written[before:])

    def say(self, line: str) -> None:
        """`enter` a line, and wait for the next prompt."""
        self.enter(line)
        self.prompt()

    def paste(self, text: str) -> None:
        """What a terminal sends when text is pasted into it."""
        self.send(_PASTE_BEGIN + text.replace("\n", "\r") + _PASTE_END)

    def resize(self, columns: int) -> None:
        """As when the window is dragged: the program gets SIGWINCH."""
        rows = self._screen.lines
        self.child.setwinsize(rows, columns)
        self._screen.resize(rows, columns)

    def press_until_it_ends(self, keys: str) -> int:
        """Press keys once a second until the program ends; its exit status."""
        self.send(keys)
        pause = time.monotonic() + 1
        while self._read(0.1):
            if time.monotonic() > pause:
                self.send(keys)
                pause = time.monotonic() + 1
        return self.end()

    def end(self) -> int:
        """Wait for the program to end; its exit status."""
        while self._read(0.2):
            pass
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -1

    def _read(self, timeout: float) -> bool:
        try:
            data = self.child.read_nonblocking(1 << 16, timeout)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.written += data
        if b"\x1b[6n" in data:  # where is the cursor?
            self._stream.feed(data)
            self.child.send(f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R")
        else:
            self._stream.feed(data)
        return True


def chat_command(*args: object) -> list[str]:
    """`pippin chat` with `args`."""
    return [sys.executable, "-m", "pippin", "chat", *map(str, args)]
