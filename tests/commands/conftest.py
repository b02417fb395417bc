"""A tiny model, its export, and a store that no test shares with the user."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pippin.cli import cli
from support.command_line import make_chat_folder, make_chat_model
from support.wheels import smollm2_gguf


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty model store."""
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
    """The default model, from the user's store: found before `home` points elsewhere."""
    return smollm2_gguf()


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run a command in this process; the exceptions that `main` reports are raised."""

    def run(*args: object, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(
            cli, [str(arg) for arg in args], input=stdin, catch_exceptions=False
        )

    return run
