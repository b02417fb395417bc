"""`pippin verify`: check an exported folder, and say who can use it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import print_json, print_table
from .options import json_option

if TYPE_CHECKING:
    from ..export.verify import Report


@click.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def command(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Check a FOLDER with an ONNX decoder, whoever exported it, and say who can use it.

    A table of checks, of what `pippin export` promises; then one of consumers, judged by rules
    about the files. Exit status: 0 the promises hold, 1 one does not, 2 a file is missing, cut off
    or contradicts another, or this is no such folder.
    """
    from ..export.verify import verify_folder

    report = verify_folder(folder)
    if as_json:
        print_json({key: [asdict(row) for row in rows] for key, rows in vars(report).items()})
    else:
        _print(report)
    if not report.ok:
        ctx.exit(2 if report.damaged else 1)


def _print(report: "Report") -> None:
    """Graphs are named where there are several."""
    several = len({check.graph for check in report.checks}) > 1
    print_table(
        [
            [*([c.graph] if several else []), "ok" if c.ok else "FAILED", c.name, c.detail]
            for c in report.checks
        ]
    )
    rows = []
    for verdict in report.consumers:
        start = [verdict.graph] if several else []
        lines = [*verdict.reasons, *verdict.notes] or [""]
        rows.append([*start, verdict.consumer, "yes" if verdict.works else "no", lines[0]])
        rows += [["" for _ in start] + ["", "", line] for line in lines[1:]]
    if rows:
        headers = [*(["graph"] if several else []), "consumer", "works", "why not; what to mind"]
        print_table([["" for _ in headers]])
        print_table(rows, headers)
