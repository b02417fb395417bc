"""Where a terminal's lines come from: the line editor, or `input` where it cannot draw."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from ..console import check_text
from .slash import is_open_block

_STYLE = Style.from_dict(
    {"bottom-toolbar": "noreverse ansibrightblack", "bottom-toolbar.full": "noreverse ansiyellow"}
)


class Reader(Protocol):
    """Reads what the user types."""

    can_prefill: bool

    def read(self, prompt: str, prefill: str = "") -> str:
        """One message or command. Raises EOFError at the end, KeyboardInterrupt at Ctrl-C with
        nothing typed, InputError for what is no text.
        """


class LineReader:
    """`input`: for terminals that cannot move the cursor, and when stdout is none."""

    can_prefill = False

    def __init__(self, write_prompt: Callable[[str], None]) -> None:
        self._write_prompt = write_prompt
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401  # `input` then edits lines

    def read(self, prompt: str, prefill: str = "") -> str:
        lines = [self._line(prompt)]
        while is_open_block("\n".join(lines)):
            lines.append(self._line("  "))
        return check_text("\n".join(lines), "the message")

    def _line(self, prompt: str) -> str:
        self._write_prompt(prompt)
        try:
            return input()
        except EOFError:
            self._write_prompt("\n")
            raise


class LineEditor:
    """prompt_toolkit: history, completion, blocks of several lines, and an editor."""

    can_prefill = True

    def __init__(
        self,
        completer: Completer,
        toolbar: Callable[[], list[tuple[str, str]]],
        history: Path | None,
        **terminal: Any,
    ) -> None:
        """`history` is the file to keep it in, None for none; `terminal` goes to PromptSession."""
        self._prompt: PromptSession[str] = PromptSession(
            completer=completer,
            complete_while_typing=Condition(lambda: _typed().startswith("/")),
            history=_history(history),
            multiline=Condition(lambda: is_open_block(_typed())),
            prompt_continuation="  ",
            key_bindings=_bindings(),
            bottom_toolbar=toolbar,
            style=_STYLE,
            enable_open_in_editor=True,
            enable_suspend=True,
            tempfile_suffix=".md",
            **terminal,
        )

    def read(self, prompt: str, prefill: str = "") -> str:
        return check_text(self._prompt.prompt(prompt, default=prefill), "the message")


def _typed() -> str:
    return get_app().current_buffer.text


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return bindings


def _history(file: Path | None) -> History:
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:  # a conversation can do without
        return InMemoryHistory()
    return FileHistory(str(file))
