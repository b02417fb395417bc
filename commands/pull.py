"""`pippin pull`: fetch a model into the store."""

import click

from .console import Progress, print_json
from .options import json_option, model_argument


@click.command("pull")
@model_argument
@json_option
def command(model: str, as_json: bool) -> None:
    """Fetch MODEL into the store.

    Prints where it is. A pull that was interrupted goes on from where it stopped.
    """
    from ..mlx_model.checkpoints import store

    with Progress() as progress:
        path = store.pull(model, progress.stage(f"fetching {model}"))
    if as_json:
        print_json({"model": model, "path": str(path)})
    else:
        click.echo(path)
