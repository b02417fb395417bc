"""Copying: by the system's command, by the terminal, or an honest no."""

import base64
import sys
from pathlib import Path

import pytest

from pippin.commands.chat_terminal import clipboard
from pippin.runtime.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the commands of Linux")


def _command(folder: Path, name: str, status: int = 0) -> Path:
    """A command that keeps what it gets."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\n/bin/cat > {folder}/got\necho "$@" > {folder}/args\nexit {status}\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("wl-copy", {"WAYLAND_DISPLAY": "wayland-0"}),
        ("xclip", {"DISPLAY": ":0"}),
        ("xsel", {"DISPLAY": ":0"}),
        ("tmux", {"TMUX": "/tmp/tmux-0/default,1,0"}),
    ],
)
def test_a_command_of_the_system(
    tmp_path: Path, name: str, env: dict[str, str], monkeypatch
) -> None:
    _command(tmp_path, name)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = clipboard.copy("Größe\n", None, env | {"PATH": str(tmp_path)})
    assert said == f"copied with {name}"
    assert (tmp_path / "got").read_text() == "Größe\n"


def test_the_terminal_where_there_is_no_command() -> None:
    sent: list[str] = []
    for env in ({}, {"SSH_CONNECTION": "1", "DISPLAY": ":0"}):
        said = clipboard.copy("Größe", sent.append, env | {"PATH": ""})
        assert "OSC 52" in said
        begin, data = sent.pop().removesuffix("\x07").rsplit(";", 1)
        assert begin == "\x1b]52;c"
        assert base64.b64decode(data).decode() == "Größe"


def test_a_command_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _command(tmp_path, "xclip", status=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    env = {"PATH": str(tmp_path), "DISPLAY": ":0"}
    sent: list[str] = []
    assert "OSC 52" in clipboard.copy("x", sent.append, env)
    with pytest.raises(InputError, match="xclip did not take the reply"):
        clipboard.copy("x", None, env)


def test_where_there_is_no_way() -> None:
    with pytest.raises(InputError, match="no clipboard that can be reached"):
        clipboard.copy("x", None, {"PATH": ""})
    with pytest.raises(InputError, match="74,994"):
        clipboard.copy("x" * 74_995, lambda _: None, {"PATH": ""})
