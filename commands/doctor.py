"""`pippin doctor`: what this machine has, and what is wrong with it."""

from dataclasses import asdict

import click

from .console import print_json, print_table
from .options import json_option


@click.command("doctor")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show what this machine has.

    Versions, devices and the store; exits with 1 if something does not work.
    """
    from ..apps.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([["ok" if f.ok else "BAD", f.name, f.value] for f in findings])
    if not all(finding.ok for finding in findings):
        ctx.exit(1)
