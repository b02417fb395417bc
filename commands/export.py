"""`pippin export`: write a checkpoint as an ONNX folder."""

from pathlib import Path

import click

from .console import Progress, print_json
from .options import WEIGHTS, json_option, model_argument, offline_option


@click.command("export")
@model_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: MODEL's name with -onnx, in the current directory]",
)
@click.option("--weights", type=click.Choice(WEIGHTS), default="q4", show_default=True)
@click.option("--dialect", type=click.Choice(("gqa", "standard")), default="gqa", show_default=True)
@click.option("--context", type=int, help="Longest sequence, in tokens.  [default: the model's]")
@click.option("--exact", is_flag=True, help="Compute as MLX does, for comparison; slower.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that an export wrote.")
@offline_option
@json_option
def command(
    model: str,
    output: Path | None,
    weights: str,
    dialect: str,
    context: int | None,
    exact: bool,
    overwrite: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Write MODEL as an ONNX folder.

    The folder, whose path is printed, runs in onnxruntime and its relatives. q4 weights that are
    quantized by MLX's scheme are taken over bit by bit.
    """
    from ..apps.models import export_model

    with Progress() as progress:
        folder = export_model(
            model,
            output,
            weights=weights,
            dialect=dialect,
            context=context,
            exact=exact,
            overwrite=overwrite,
            fetch=not offline,
            stages=progress.stage,
        )
    if as_json:
        print_json({"model": model, "path": str(folder), "weights": weights, "dialect": dialect})
    else:
        click.echo(folder)
