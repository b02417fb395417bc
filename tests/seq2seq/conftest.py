from functools import cache

import pytest

from support.encoders import SEQ2SEQ, TinyStack, make_stack


@pytest.fixture(scope="session")
def writer(tmp_path_factory):
    """writer(name) -> the TinyStack of a row of SEQ2SEQ, made once; tests must not change it."""

    @cache
    def make(name: str) -> TinyStack:
        kind, config = SEQ2SEQ[name]
        return make_stack(tmp_path_factory.mktemp("seq2seq") / name, kind, config)

    return make
