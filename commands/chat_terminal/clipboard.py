"""Copying to the clipboard: the system's own command, or the terminal by an OSC 52 sequence."""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

from ...runtime.errors import InputError

# What terminals take at least: xterm's buffer, of which base64 leaves three quarters.
MAX_OSC52_BYTES = 74_994
_TIMEOUT = 5  # seconds; a command may wait for a display that does not answer


def copy(
    text: str, send: Callable[[str], None] | None, env: Mapping[str, str] | None = None
) -> str:
    """Copy `text`; how that was done, as a note to the user.

    `send` writes a control sequence to the terminal; None where there is none that knows any.
    Raises InputError when there is no way.
    """
    env = os.environ if env is None else env
    command = _command(env)
    if command is not None and (reason := _run(command, text)) is None:
        return f"copied with {command[0]}"
    if command is not None and send is None:
        raise InputError(f"{command[0]} did not take the reply ({reason}); mark it with the mouse")
    if send is None:
        raise InputError(
            "this terminal has no clipboard that can be reached; install wl-copy, xclip or xsel, "
            "or mark the reply with the mouse"
        )
    data = text.encode()
    if len(data) > MAX_OSC52_BYTES:
        raise InputError(
            f"the reply has {len(data):,} bytes, and terminals take {MAX_OSC52_BYTES:,}; install "
            "wl-copy, xclip or xsel, or mark it with the mouse"
        )
    send(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    return "sent to the terminal's clipboard (OSC 52), which some terminals must be set to allow"


def _command(env: Mapping[str, str]) -> list[str] | None:
    """The first command that is installed and reaches the clipboard of whoever looks on."""
    if env.get("TMUX"):
        wanted = [["tmux", "load-buffer", "-w", "-"]]
    elif env.get("SSH_CONNECTION") or env.get("SSH_TTY"):
        wanted = []  # they would fill the clipboard of the machine at the other end
    elif sys.platform == "darwin":
        wanted = [["pbcopy"]]
    elif sys.platform == "win32" or env.get("WSL_DISTRO_NAME"):
        wanted = [["clip.exe"]]
    else:
        wanted = [["wl-copy"]] if env.get("WAYLAND_DISPLAY") else []
        if env.get("DISPLAY"):
            wanted += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return next((c for c in wanted if shutil.which(c[0], path=env.get("PATH"))), None)


def _run(command: list[str], text: str) -> str | None:
    """Why the command failed; None when it did not."""
    data = text.encode("utf-16-le" if command[0] == "clip.exe" else "utf-8")
    try:
        # Its output goes nowhere: xclip stays in the background and would keep a pipe open.
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return f"exit status {done.returncode}" if done.returncode else None
