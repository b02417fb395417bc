from functools import cache
from pathlib import Path

import pytest

from support.encoders import ENCODERS, TinyStack, make_stack


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """encoder(name) -> the TinyStack of a row of ENCODERS, made once; tests must not change it."""

    @cache
    def make(name: str) -> TinyStack:
        kind, config = ENCODERS[name]
        return make_stack(tmp_path_factory.mktemp("encoder") / name, kind, config)

    return make


@pytest.fixture
def copied(tmp_path):
    """copied(stack) -> a copy of its folder that a test may change."""

    def copy(stack: TinyStack) -> Path:
        folder = tmp_path / "copy"
        folder.mkdir()
        for file in stack.path.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    return copy
