"""A tokenizer of bytes for the tests of structured output."""

import pytest

from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import write_tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    return Tokenizer.from_folder(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))
