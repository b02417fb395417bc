"""An option of the kernel tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-mutants",
        action="store_true",
        help="write the table of mutants in docs/kernels.md anew, after a run of all of them",
    )
