"""What commands print: the answer on stdout; progress, statistics and warnings on stderr."""

import json
import re
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import click

from ..runtime.errors import InputError

if TYPE_CHECKING:
    from ..runtime.generator import Stats

# A number, perhaps with a unit, a spread or what it is a share of: "<0.01 %", "4.2 [4.0–4.4] 81%".
_NUMBER = re.compile(
    r"[-−+±~<≤≥]?\s?(\d[\d,.]*(e[-+]?\d+)?|∞)( ?[%×]| [A-Za-z/]{1,6})?"
    r"( of \d[\d,]*|( \(.*\)| \[.*\])?( \d+%)?)"
)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """A line on stderr, for whoever watches; control characters are spelled out."""
    click.echo(shown(text), err=True)


def write(text: str) -> None:
    """A piece of the answer on stdout, at once: as it is, but to a terminal as `shown` has it."""
    sys.stdout.write(shown(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def shown(text: str) -> str:
    """`text` with control characters spelled out: what others wrote must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _spell(c) for c in text)


def _spell(char: str) -> str:
    code = ord(char)
    if code < 32 or code == 127:
        return "^" + chr(code ^ 64)
    # Joiners and other invisible characters are part of the text; controls of 8 bits are not.
    return ascii(char)[1:-1] if code < 160 else char


def print_table(rows: Sequence[Sequence[str]], headers: Sequence[str] = ()) -> None:
    """`table_lines` on stdout."""
    for line in table_lines(rows, headers):
        write(f"{line}\n")


def table_lines(rows: Sequence[Sequence[str]], headers: Sequence[str] = ()) -> list[str]:
    """Columns two spaces apart; those that hold numbers only are set flush right.

    Widths are a terminal's cells, of which a Chinese character takes two.
    """
    from rich.cells import cell_len

    lines = [list(headers), *rows] if headers else list(rows)
    if not lines:
        return []
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    numeric = [all(map(_is_number, column[bool(headers) :])) for column in columns]
    made = []
    for line in lines:
        cells = []
        for text, width, right in zip(line, widths, numeric, strict=True):
            blank = " " * (width - cell_len(text))
            cells.append(blank + text if right else text + blank)
        made.append("  ".join(cells).rstrip())
    return made


def _is_number(text: str) -> bool:
    return text in ("", "-") or _NUMBER.fullmatch(text) is not None


def format_bytes(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1 before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def format_stats(stats: "Stats") -> str:
    """One line on what a reply took."""
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    drafted = ""
    if stats.drafted_tokens:
        drafted = f" ({stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens accepted)"
    return (
        f"prompt {stats.prompt_tokens} tokens{cached}, {stats.prefill_rate:.1f} tok/s; "
        f"reply {stats.reply_tokens} tokens{drafted}, {stats.decode_rate:.1f} tok/s; "
        f"first token after {stats.prefill_seconds:.2f} s; seed {stats.seed}"
    )


def read_text(argument: str | None, what: str) -> str:
    """The argument, or stdin when it is `-` or absent; one line break at its end is dropped.

    Raises InputError: nothing there, empty, not UTF-8, a NUL character.
    """
    if argument not in (None, "-"):
        text = check_text(argument, f"the {what}")
    elif sys.stdin is None or (argument is None and sys.stdin.isatty()):
        raise InputError(f"no {what}; give it as an argument, or - to read it from stdin")
    else:
        text = decode(sys.stdin.buffer.read(), what).removesuffix("\n").removesuffix("\r")
    if not text:
        raise InputError(f"the {what} is empty; give at least one character")
    return text


def decode(data: bytes, what: str) -> str:
    """UTF-8 text from stdin. Raises InputError for anything else and for NUL characters."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the {what} on stdin is not UTF-8: byte 0x{data[error.start]:02x} at offset "
            f"{error.start}; convert it first, for example with iconv"
        ) from error
    return check_text(text, f"the {what} on stdin")


def check_text(text: str, what: str) -> str:
    """`text` itself. Raises InputError for a NUL character and for what was not UTF-8."""
    if "\0" in text:
        raise InputError(f"{what} has a NUL character at offset {text.index(chr(0))}; remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not UTF-8 at offset {error.start}; convert it first") from None
    return text


class Progress:
    """One bar on stderr at a time; nothing at all where stderr is no terminal.

    Use as a context manager. `stage` gives the callback that a library call takes.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._title = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stage(self, title: str, unit: str = "bytes") -> "Stage":
        """A callback (done, total) that shows how far `title` is; `unit` is bytes or a noun."""
        return Stage(self, title, unit)

    def close(self) -> None:
        """Take the bar away; a later callback shows it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, title: str, unit: str, done: int, total: int | None) -> None:
        """Show `done` of `total`."""
        if not self._shown or (self._bar is None and total is not None and done >= total):
            return  # a stage that is over at once needs no bar
        if self._bar is None or title != self._title:
            self.close()
            self._open(title, unit)
        self._bar.update(self._task, completed=done, total=total)

    def _open(self, title: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        counts = (
            (DownloadColumn(binary_units=True), TransferSpeedColumn())
            if unit == "bytes"
            else (MofNCompleteColumn(), TextColumn(unit))
        )
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),  # which may name the user's file
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        self._title = title
        self._task = self._bar.add_task(shown(title), total=None)
        self._bar.start()


class Stage:
    """The callback of one stage; counts a total of None as unknown."""

    def __init__(self, progress: Progress, title: str, unit: str) -> None:
        self._progress, self._title, self._unit = progress, title, unit

    def __call__(self, done: int, total: int | None) -> None:
        self._progress.update(self._title, self._unit, done, total)
