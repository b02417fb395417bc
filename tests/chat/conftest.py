"""Conversations of a test's own, and models that answer at once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore
from support import command_line
from support.scripted_chat import make_replies, scripted_command
from support.terminal import Terminal, chat_command

model, folder, smollm2 = command_line.model, command_line.folder, command_line.smollm2
home = command_line.home


@pytest.fixture
def store(home: Path) -> ChatStore:
    """They themselves."""
    return ChatStore()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts programs in terminals, and ends those that still run."""
    started = []

    def start(command: list[str], **options: object) -> Terminal:
        started.append(Terminal(command, **options))
        return started[-1]

    yield start
    for one in started:
        one.child.close(force=True)


@pytest.fixture
def scripted(terminal: Callable[..., Terminal], tmp_path: Path) -> Callable[..., Terminal]:
    """A chat with a model that says what it is told to; "endless" is answered without an end."""

    def start(
        replies: dict[str, str] | None = None, *options: str, pace: float = 0, **more: object
    ) -> Terminal:
        folder = make_replies(tmp_path / "scripted", replies or {})
        env = {"PACE": str(pace)} | dict(more.pop("env", {}))
        return terminal(scripted_command(folder, *options), env=env, **more)

    return start


@pytest.fixture
def chat(terminal: Callable[..., Terminal]) -> Callable[..., Terminal]:
    """`pippin chat` with a model of its own."""
    return lambda *args, **options: terminal(chat_command(*args), **options)
