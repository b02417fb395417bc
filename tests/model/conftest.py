import json
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from support.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny_factory(tmp_path_factory):
    """make(**changes) -> Tiny, one checkpoint a set of changes."""
    made: dict[str, Tiny] = {}

    def make(kind: str = "Llama", **changes) -> Tiny:
        key = json.dumps([kind, changes], sort_keys=True)
        if key not in made:
            made[key] = make_tiny(tmp_path_factory.mktemp("tiny"), kind, **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def engine_of():
    """engine(path) -> a float32 MlxEngine on the checkpoint at `path`."""

    def build(path: Path) -> MlxEngine:
        checkpoint = open_checkpoint(path)
        return MlxEngine(load_decoder(checkpoint, mx.float32), "tiny", checkpoint.fingerprint)

    return build


@pytest.fixture
def edited(tmp_path):
    """edit(tiny, **keys) -> a copy of its folder with config.json keys set, or removed by `...`."""

    def edit(tiny: Tiny, **keys) -> Path:
        folder = tmp_path / "edited"
        folder.mkdir(exist_ok=True)
        for source in tiny.path.iterdir():
            target = folder / source.name
            target.unlink(missing_ok=True)
            target.symlink_to(source)
        config = json.loads((tiny.path / "config.json").read_text())
        config.update(keys)
        config = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return edit
