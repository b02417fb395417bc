"""The commands of the chat: how a line is told from a message, and which one it is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...runtime.errors import InputError

_COMMAND = re.compile(r"/([A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)
# What they are called elsewhere.
_SAME = {"exit": "quit", "bye": "quit", "?": "help", "retry": "regen", "sessions": "list"}


@dataclass(frozen=True)
class Command:
    """A command; `arguments` is what the help shows behind its name."""

    name: str
    arguments: str
    help: str
    run: Callable[[Any, str], None]  # run(chat, what was typed behind the name)


def parse(line: str, commands: dict[str, Command]) -> tuple[Command, str] | None:
    """The command and its argument; None for a message.

    A message may begin with a path, such as /usr/bin; to begin one with what looks like a
    command, write // (see `message`). Raises InputError for a name that no command has.
    """
    match = _COMMAND.fullmatch(line.strip())
    if match is None:
        return None
    name = match[1].lower()
    name = _SAME.get(name, name)
    if name not in commands:
        near = get_close_matches(name, commands, n=1) or [c for c in commands if c[0] == name[0]]
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise InputError(f"there is no command /{match[1]}; {hint}")
    return commands[name], (match[2] or "").strip()


def message(line: str) -> str:
    """The message that was typed: without the marks of a block, // at its beginning as /."""
    text = line.strip("\r\n")
    bare = text.strip()
    if bare.startswith('"""'):
        text = bare.removeprefix('"""').removesuffix('"""').strip("\n")
    return text[1:] if text.startswith("//") else text


def is_open_block(text: str) -> bool:
    """Whether `text` began with three quotes that have not been closed."""
    bare = text.strip()
    return bare.startswith('"""') and not (len(bare) >= 6 and bare.endswith('"""'))
