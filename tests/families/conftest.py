"""What the tests of all rows share."""

from functools import lru_cache

import pytest

from support.families import Row, Subject


@pytest.fixture(scope="session")
def subject_of(tmp_path_factory):
    """subject(row); tests come row by row, so that only the last one is kept."""

    @lru_cache(maxsize=1)
    def build(row: Row) -> Subject:
        return Subject(row, tmp_path_factory.mktemp(row.name))

    return build
