"""`pippin completion`: what a shell offers after Tab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pippin.apps.chat.saved import ChatStore, SavedChat
from support.command_line import one_line, run_pippin

# Completes the words that it is given as bash does, with the function of the script.
_BASH = """
source <(pippin completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_pippin_completion pippin 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with a `pippin` that is this one."""
    program = tmp_path / "bin" / "pippin"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pippin "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["pippin", "gen"], {"generate"}),
        (["pippin", "chat", "--sy"], {"--system"}),
        (["pippin", "chat", "--backend", "m"], {"mlx"}),
        (["pippin", "chat", "smol"], {"smollm2"}),
        (["pippin", "chat", "--resume", "tr"], {"trip"}),
    ],
)
def test_bash_completes(path: str, words: list[str], wanted: set[str]) -> None:
    ChatStore().write("trip", SavedChat([], {"name": "x"}))
    done = subprocess.run(
        ["bash", "--norc", "-c", _BASH, "bash", *words],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert wanted <= set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str) -> None:
    run = run_pippin("completion", shell)
    assert run.code == 0
    assert "_PIPPIN_COMPLETE" in run.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=run.out, text=True, check=True)


def test_another_shell_is_one_line() -> None:
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in one_line(
        run_pippin("completion", "tcsh")
    )
