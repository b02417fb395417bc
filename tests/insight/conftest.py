"""A browser, and a tiny model behind the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from support import browser
from support.command_line import invoke_pippin, make_chat_folder, make_chat_model

axe, chromium, violations = browser.axe, browser.chromium, browser.violations
open_file = browser.open_file


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint made for chat; tests must not change it."""
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session")
def chat_folder(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, exported; tests must not change it."""
    return make_chat_folder(chat_model, tmp_path_factory.mktemp("exports") / "tiny-onnx")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process, with an empty store; what `main` reports is raised."""
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))
    return invoke_pippin
