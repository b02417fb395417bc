"""What docs/kernels.md says of bytes and dispatch is what the programs say."""

import pytest

from emulator import SKIP_REASON, find_clang
from support import kernel_tables
from support.generated import KERNELS, generated_part


@pytest.mark.parametrize("name", ["dispatch", "roofline"])
def test_the_document_has_the_table(name):
    table = getattr(kernel_tables, f"{name}_table")()
    assert generated_part(KERNELS, name) == table, "run: python -m support.kernel_tables --write"


@pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
def test_bytes_by_formula_are_those_of_the_emulator():
    table = kernel_tables.measured_table()
    assert generated_part(KERNELS, "bytes") == table
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]
    assert all(formula == emulator for _, formula, emulator, _ in rows)
    shares = {name: float(share) for name, _, _, share in rows}
    assert shares["decode"] == shares["decode, 4 queries"] == 1
    assert shares["decode, 4 bits"] == pytest.approx(4 / 16 + 2 / 64, abs=1e-3)
    assert shares["decode, 8 bits"] == pytest.approx(8 / 16 + 2 / 64, abs=1e-3)
    assert shares["decode, window 48"] == pytest.approx(48 / 1024, abs=1e-3)
    window, longer = (cells[1] for cells in rows[1:3])
    assert window == longer  # four times the context, not one byte more
