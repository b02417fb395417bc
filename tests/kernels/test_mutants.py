"""Every fault put into a kernel is caught, and the table in docs/kernels.md names it.

Each test prints its row (`pytest -rP`). After a change of the mutants:
`pytest tests/kernels/test_mutants.py --write-mutants`.
"""

from collections.abc import Iterator

import pytest

from emulator import SKIP_REASON, find_clang
from support.generated import KERNELS, generated_part, markdown_table, write_part
from support.mutants import Mutant, all_mutants

needs_clang = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
ALL = all_mutants()
HEADERS = ["kernel", "fault", "class", "case that catches it", "check"]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[list[str]]]:
    """Rows of the table; with --write-mutants they take the old one's place."""
    rows = []
    yield rows
    if request.config.getoption("--write-mutants", default=False) and len(rows) == len(ALL):
        write_part(KERNELS, "mutants", markdown_table(HEADERS, rows))


@needs_clang
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.kernel}: {mutant.name}")
def test_is_caught(mutant: Mutant, table: list[list[str]]):
    caught = mutant.caught_by()
    assert caught, f"nobody noticed: {mutant.name}"
    table.append([mutant.kernel, mutant.name, mutant.fault, *caught])
    print(" | ".join(table[-1]))


def test_the_table_has_every_mutant():
    rows = [
        line.strip("| ").split(" | ") for line in generated_part(KERNELS, "mutants").split("\n")
    ]
    found = [tuple(row[:3]) for row in rows[2:]]
    assert found == [(m.kernel, m.name, m.fault) for m in ALL]
    assert len(found) >= 30
    assert all(len(row) == len(HEADERS) and row[4].strip() for row in rows)


def test_each_fault_is_in_the_source_once_and_changes_it():
    for mutant in ALL:
        assert mutant.file in mutant.files
        assert mutant.replacement != mutant.text


@needs_clang
def test_a_fault_leaves_nothing_behind():
    """After a mutant, the kernel is itself again: its own probes pass."""
    mutant = next(mutant for mutant in ALL if mutant.kernel == "prefill")
    assert mutant.caught_by()
    mutant.probes[0][1]()
