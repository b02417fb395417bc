import json

import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.quantized import SIZES
from support.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny_factory(tmp_path_factory):
    """make(**changes) -> Tiny with rows that every group divides, one a set of changes."""
    made: dict[str, Tiny] = {}

    def make(**changes) -> Tiny:
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            made[key] = make_tiny(tmp_path_factory.mktemp("tiny"), **{**SIZES, **changes})
        return made[key]

    return make


@pytest.fixture
def checkpoint(tiny_factory):
    """An unquantized checkpoint; tests must not change it."""
    return open_checkpoint(tiny_factory().path)
