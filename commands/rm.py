"""`pippin rm`: delete models from the store."""

import sys

import click

from .console import format_bytes, note


@click.command("rm")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(models: tuple[str, ...], yes: bool) -> None:
    """Delete models from the store.

    What was exported from a MODEL to be run goes with it.
    """
    from ..mlx_model.checkpoints import store

    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("stdin is no terminal to ask on; give --yes to delete")
        if not click.confirm(f"Delete {', '.join(models)}?", err=True):
            note("nothing deleted")
            return
    for model in models:
        note(f"{model}: {format_bytes(store.remove(model))} freed")
