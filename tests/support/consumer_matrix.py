"""The table consumer × weights that is printed after the tests of tests/consumers."""

from typing import Any

_SIGNS = {"passed": "same", "failed": "DIFFERS", "skipped": "skipped"}


def print_matrix(terminalreporter: Any) -> None:
    """Print what the tests recorded, if any of them ran: one line a consumer."""
    cells: dict[str, dict[str, str]] = {}
    for outcome, sign in _SIGNS.items():
        for report in terminalreporter.stats.get(outcome, []):
            told = dict(getattr(report, "user_properties", ()))
            if "consumer" in told:
                cell = told.get("refusal") or f"{sign} {told.get('cost', '')}".strip()
                cells.setdefault(told["consumer"], {})[told["weights"]] = cell
    if cells:
        terminalreporter.section("one folder, every consumer: tokens, load time, peak memory")
        for line in _table(cells):
            terminalreporter.write_line(line)


def _table(cells: dict[str, dict[str, str]]) -> list[str]:
    names = [w for w in ("fp32", "fp16", "q4", "int8") if any(w in row for row in cells.values())]
    rows = [["", *names]]
    rows += [[name, *(row.get(w, "") for w in names)] for name, row in sorted(cells.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
