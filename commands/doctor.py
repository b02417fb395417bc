"""`pippin doctor`: what this machine has, and what is wrong with it."""

from dataclasses import asdict

import click

from .console import print_json, print_table
from .options import json_option


@click.command("doctor")
@click.option(
    "--kernels", is_flag=True, help="Show instead who computes which kind of attention, and why."
)
@json_option
@click.pass_context
def command(ctx: click.Context, kernels: bool, as_json: bool) -> None:
    """Show what this machine has.

    Versions, devices and the store; exits with 1 if something does not work.

    With --kernels: each kind of attention, and whether MLX's own op (mlx), one of our Metal kernels
    (decode, prefill) or MLX's operations one after another (fallback) compute it.
    PIPPIN_ATTENTION=mlx or =kernels forces one or the other, for debugging.
    """
    from ..apps.doctor import examine, explain_kernels

    if kernels:
        served = explain_kernels()
        if as_json:
            print_json([asdict(each) for each in served])
        else:
            rows = [[each.case, each.here, each.on_metal, each.reason] for each in served]
            print_table(rows, ["ATTENTION", "HERE", "ON METAL", "WHY HERE"])
        return
    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([["ok" if f.ok else "BAD", f.name, f.value] for f in findings])
    if not all(finding.ok for finding in findings):
        ctx.exit(1)
