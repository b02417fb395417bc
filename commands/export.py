"""`pippin export`: write a checkpoint as an ONNX folder."""

from pathlib import Path
from typing import Any

import click

from .console import Progress, print_json
from .options import WEIGHTS, adapter_option, json_option, model_argument, offline_option

# The keys of `export.targets.TARGETS`, which takes too long to import for a help text.
_TARGETS = ("cpu", "web", "webgpu", "coreml", "cuda", "mlx-ep")


def _split_weights(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> list[str] | None:
    if value is None:
        return None
    names = value.split(",")
    for name in names:
        if name not in WEIGHTS:
            known = ", ".join(WEIGHTS)
            raise click.BadParameter(f"{name!r} is not one of {known}", ctx, parameter)
    return names


@click.command("export")
@model_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: MODEL's name with -onnx, in the current directory]",
)
@click.option(
    "--weights",
    callback=_split_weights,
    metavar=f"[{'|'.join(WEIGHTS)}][,…]",
    help="Kind of weights; several, separated by commas, make as many graphs in one folder.  "
    "[default: q4; fp32 for an encoder]",
)
@click.option(
    "--dialect", type=click.Choice(("gqa", "standard")), help="[default: gqa; decoders only]"
)
@click.option("--context", type=int, help="Longest sequence, in tokens.  [default: the model's]")
@click.option(
    "--kv",
    type=click.Choice(("fp32", "fp16", "int8")),
    help="What the KV cache holds: the activations' type (fp16 with fp16 weights, else fp32), or "
    "int8, a quarter as large, in dialect gqa.  [default: the activations' type; with quantized "
    "weights for cpu, int8 as a second graph on the same weights]",
)
@click.option(
    "--for",
    "target",
    envvar="PIPPIN_EXPORT_FOR",
    type=click.Choice(_TARGETS),
    default="cpu",
    show_default=True,
    help="Execution provider that the graphs are made for. coreml, cuda and mlx-ep "
    "have not been run; the folder's README says what they leave to the CPU.",
)
@click.option(
    "--embed-sampling",
    is_flag=True,
    help="Add the outputs token, top_ids and top_logits, so that logits can stay on their device.",
)
@click.option("--exact", is_flag=True, help="Compute as MLX does, for comparison; slower.")
@adapter_option
@click.option("--overwrite", is_flag=True, help="Replace a folder that an export wrote.")
@offline_option
@json_option
def command(
    model: str,
    output: Path | None,
    embed_sampling: bool,
    offline: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write MODEL as an ONNX folder.

    The folder, whose path is printed, runs in onnxruntime and its relatives; its README.md has
    inputs, outputs, limits and a program in each of four languages. q4 weights that are quantized
    by MLX's scheme are taken over bit by bit.
    """
    from ..apps.models import export_model

    with Progress() as progress:
        folder = export_model(
            model,
            output,
            sampling=embed_sampling,
            fetch=not offline,
            stages=progress.stage,
            **options,
        )
    if as_json:
        print_json({"model": model, "path": str(folder), **_written(folder, **options)})
    else:
        click.echo(folder)


def _written(folder: Path, dialect: str | None, target: str, **_: Any) -> dict[str, Any]:
    """What was chosen, by the user or for the kind of model."""
    from ..export.targets import TARGETS
    from ..runtime.layouts import read_layout

    weights = sorted(read_layout(folder).graphs)
    return {"weights": weights, "dialect": dialect or TARGETS[target].dialects[0]}
