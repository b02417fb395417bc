"""A tiny model, its export, and a store that no test shares with the user."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from support import command_line

model, folder, smollm2 = command_line.model, command_line.folder, command_line.smollm2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model store."""
    folder = tmp_path / "home"
    monkeypatch.setenv("PIPPIN_HOME", str(folder))
    return folder


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run a command in this process; the exceptions that `main` reports are raised."""
    return command_line.invoke_pippin
