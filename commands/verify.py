"""`pippin verify`: check an exported folder."""

from dataclasses import asdict
from pathlib import Path

import click

from .console import print_json, print_table
from .options import json_option


@click.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def command(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Check an exported FOLDER in onnxruntime.

    Exits with 1 if a check fails.
    """
    from ..export.verify import verify_folder

    checks = verify_folder(folder)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table([["ok" if c.ok else "FAILED", c.name, c.detail] for c in checks])
    if not all(check.ok for check in checks):
        ctx.exit(1)
