"""A store of its own for every test, and servers on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.mlx_model.checkpoints import download
from support.servers import FileServer, serve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model store."""
    folder = tmp_path / "store"
    monkeypatch.setenv("PIPPIN_HOME", str(folder))
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A file server, asked directly and again without delay."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "RETRY_DELAYS", (0.0, 0.0))
    with serve() as running:
        yield running
