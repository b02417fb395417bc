"""How a line is told from a message."""

import pytest

from pippin.commands.chat_terminal.actions import COMMANDS
from pippin.commands.chat_terminal.slash import is_open_block, message, parse
from pippin.runtime.errors import InputError

NAMES = [
    *("attach", "clear", "copy", "edit", "help", "json", "list", "load", "model"),
    *("quit", "regen", "save", "set", "stats", "system", "undo", "why"),
]


def test_the_commands_are_all_there() -> None:
    assert sorted(COMMANDS) == NAMES


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("  /Set temperature 0.7 ", "set", "temperature 0.7"),
        ("/system one\ntwo", "system", "one\ntwo"),
        ("/bye", "quit", ""),
        ("/?", "help", ""),
    ],
)
def test_commands(line: str, name: str, argument: str) -> None:
    command, found = parse(line, COMMANDS)
    assert (command.name, found) == (name, argument)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Hello /help", "Hello /help"),
        ("/usr/bin is what?", "/usr/bin is what?"),
        ("//help is what?", "/help is what?"),
        ("/ is the root", "/ is the root"),
        ('"""\none\n  two\n"""', "one\n  two"),
        ('"""one"""', "one"),
        ("  indented", "  indented"),
    ],
)
def test_messages(line: str, said: str) -> None:
    assert parse(line, COMMANDS) is None
    assert message(line) == said


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/hepl", "there is no command /hepl; did you mean /help?"),
        ("/atach x", "did you mean /attach?"),
        ("/xyzzy", "/help lists them"),
    ],
)
def test_unknown_commands_name_the_nearest(line: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(line, COMMANDS)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_open"),
    [('"""', True), ('"""a\nb', True), ('"""a"""', False), ('"""\na\n"""', False), ("a", False)],
)
def test_blocks(text: str, is_open: bool) -> None:
    assert is_open_block(text) is is_open
