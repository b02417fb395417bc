"""The table of docs/models.md: every row of `families.ROWS`, measured.

`PYTHONPATH=tests python -m support.models_document`; `--write` (or `make models`) puts it into the
document. A row that does not hold ends the program: nothing is written.
"""

import sys
import tempfile
from pathlib import Path

from pippin.runtime.errors import InputError

from .families import ROWS, TOLERANCE, WAYS, Row, Subject, error
from .family_rows.row import DIALECTS
from .generated import markdown_table, write_part
from .tiny import model_class

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
PART = "models"
HEADERS = ["model_type", "variant", "transformers class", "what it has of its own", "lengths"]
MEASURED = ["MLX", "float64", *(f"ONNX {dialect}" for dialect in DIALECTS)]


def description(row: Row) -> list[str]:
    """The cells that need no measurement."""
    lengths = ", ".join(map(str, row.lengths))
    return [row.family, row.name, model_class(row.kind).__name__, row.notes, lengths]


def measurements(subject: Subject) -> list[str]:
    """The worst errors over all lengths and ways, or how a dialect refuses."""
    row = subject.row
    ours = max(
        subject.error(subject.run(subject.mlx, n, way), subject.theirs)
        for n in row.lengths
        for way in WAYS
    )
    exact = max(error(subject.exact(n), subject.theirs(n)) for n in row.lengths)
    return [
        _within(row, "MLX", ours),
        _within(row, "float64", exact),
        *(_dialect(subject, dialect) for dialect in DIALECTS),
    ]


def _dialect(subject: Subject, dialect: str) -> str:
    row = subject.row
    if dialect in row.refusals:
        try:
            subject.export(dialect)
        except InputError as refusal:
            if row.refusals[dialect] in str(refusal):
                return f"refused: {row.refusals[dialect]}"
            raise
        raise SystemExit(f"{row.name}: the dialect {dialect} refuses it no longer; change its row")
    onnx = subject.onnx(dialect)
    worst = max(
        subject.error(subject.run(onnx, n, way), subject.ours) for n in row.lengths for way in WAYS
    )
    return _within(row, dialect, worst)


def _within(row: Row, what: str, worst: float) -> str:
    if not worst <= TOLERANCE:
        raise SystemExit(f"{row.name}: {what} is off by {worst:.1e}; {TOLERANCE:.0e} is allowed")
    return f"{worst:.1e}"


def models_table() -> str:
    """One line a row."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            subject = Subject(row, Path(folder) / row.name)
            lines.append([*description(row), *measurements(subject)])
            print(f"{row.name}: {', '.join(lines[-1][len(HEADERS) :])}", file=sys.stderr)
    return markdown_table([*HEADERS, *MEASURED], lines, numeric=len(HEADERS))


def main() -> None:
    table = models_table()
    print(table)
    if "--write" in sys.argv[1:]:
        write_part(MODELS, PART, table)


if __name__ == "__main__":
    main()
