"""docs/models.md has the rows that there are, and says of each what the tests hold it to."""

import re

from support.families import ROWS, TOLERANCE
from support.family_rows.row import DIALECTS
from support.generated import generated_part
from support.models_document import HEADERS, MEASURED, MODELS, PART, description
from support.tiny import config_class


def table() -> list[list[str]]:
    lines = generated_part(MODELS, PART).split("\n")
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_rows_have_names_of_their_own_and_their_class_has_their_family():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    families = {row.name: row.family for row in ROWS}
    assert families == {row.name: config_class(row.kind).model_type for row in ROWS}


def test_the_document_names_the_rows_that_there_are():
    headers, _, *lines = table()
    assert headers == [*HEADERS, *MEASURED]
    stated = [line[: len(HEADERS)] for line in lines]
    assert stated == [description(row) for row in ROWS], "run: make models"


def test_the_document_states_refusals_and_errors_within_the_tolerance():
    """The digits are not compared: they differ between machines by rounding."""
    for row, line in zip(ROWS, table()[2:], strict=True):
        found = dict(zip(MEASURED, line[len(HEADERS) :], strict=True))
        stated = {dialect: found.pop(f"ONNX {dialect}") for dialect in DIALECTS}
        refused = {d: cell for d, cell in stated.items() if not cell[0].isdigit()}
        assert refused == {d: f"refused: {words}" for d, words in row.refusals.items()}
        errors = [*found.values(), *(stated[dialect] for dialect in row.dialects)]
        assert all(0 < float(cell) <= TOLERANCE for cell in errors), row.name
