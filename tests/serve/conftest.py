"""Models for a server: one without weights, and a tiny one on onnxruntime."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.apps.models import Model, load_model
from support.byte_tokenizer import write_tokenizer
from support.command_line import make_chat_model
from support.serving import Served, fake_model, serving


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the byte tokenizer and its chat template."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random chat model, exported in float32; tests must not change it."""
    from pippin.export.folder import export_folder
    from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint

    folder = tmp_path_factory.mktemp("served")
    model = make_chat_model(folder / "tiny-chat", max_position_embeddings=2048)
    return export_folder(open_checkpoint(model), folder / "tiny-onnx", weights="fp32")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Model:
    """The same, loaded, on one thread."""
    return load_model(str(tiny_folder), threads=1)


@pytest.fixture(scope="module")
def tiny_server(tiny: Model) -> Iterator[Served]:
    """A server of it, for tests that leave it as it was."""
    with serving(tiny) as served:
        yield served


@pytest.fixture
def fake_server(byte_tokenizer: Path) -> Iterator[Served]:
    """A server of a model without weights."""
    with serving(fake_model(byte_tokenizer)) as served:
        yield served
