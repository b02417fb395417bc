"""`pippin quantize`: write a checkpoint in fewer bits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Progress, format_bytes, note, print_json
from .options import adapter_option, json_option, model_argument, offline_option

if TYPE_CHECKING:
    from ..apps.quantize import Outcome
    from ..mlx_model.quantized_layers import Format

BITS = ("2", "3", "4", "5", "6", "8")
GROUPS = ("32", "64", "128")
MODES = ("affine", "mxfp4", "nvfp4", "mxfp8")
_SHOWN = 3  # layers named in a note
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")


def _number(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else int(value)


@click.command("quantize")
@model_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: MODEL's name with -4bit or the like]",
)
@click.option("--bits", type=click.Choice(BITS), callback=_number, help="[default: 4]")
@click.option(
    "--group",
    type=click.Choice(GROUPS),
    callback=_number,
    help="Columns that share a scale.  [default: 64]",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="affine",
    show_default=True,
    help="The others are 4- and 8-bit floats; bits and group follow.",
)
@click.option("--recipe", type=click.Choice(RECIPES), help="More bits where they count most.")
@click.option(
    "--per-layer",
    metavar="RULE",
    multiple=True,
    help="PATTERN=BITS[:GROUP], PATTERN=MODE or PATTERN=float; the last that matches counts.",
)
@adapter_option
@click.option("--requantize", is_flag=True, help="Take a model that is quantized already.")
@click.option("--eval", is_flag=True, help="Measure perplexity before and after.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that this command wrote.")
@offline_option
@json_option
def command(
    model: str,
    output: Path | None,
    group: int | None,
    per_layer: tuple[str, ...],
    offline: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write MODEL in fewer bits, for MLX.

    The folder, whose path is printed, is in mlx-lm's format; `pippin export` takes it to ONNX. A
    PATTERN is matched with a layer's path, and * stands for any part of it: '*v_proj=6' or
    'lm_head=float'.
    """
    from ..apps.quantize import quantize_model

    with Progress() as progress:
        outcome = quantize_model(
            model,
            output,
            group_size=group,
            rules=per_layer,
            measure=options.pop("eval"),
            fetch=not offline,
            stages=progress.stage,
            **options,
        )
    _warn(outcome)
    if as_json:
        print_json({"model": model} | _document(outcome))
        return
    click.echo(outcome.quantized.path)
    for label, report in (("before", outcome.before), ("after", outcome.after)):
        if report is not None:
            note(f"perplexity {label}: {report.score.perplexity:.4f} on {report.tokens} tokens")


def _warn(outcome: "Outcome") -> None:
    """What was written, and which layers stayed floats because no group divides their rows."""
    quantized = outcome.quantized
    layers = [wanted for wanted in quantized.plan.values() if wanted]
    note(
        f"{len(layers)} of {len(quantized.plan)} layers in {_formats(layers)}; "
        f"{quantized.bits_per_weight:.2f} bits a weight, {format_bytes(quantized.bytes)}"
    )
    if narrow := list(quantized.too_narrow):
        more = f" and {len(narrow) - _SHOWN} more" if len(narrow) > _SHOWN else ""
        note(
            f"in floating point, since their rows are no multiple of the group: "
            f"{', '.join(narrow[:_SHOWN])}{more}"
        )


def _formats(layers: "list[Format]") -> str:
    """ "4-bit affine weights in groups of 64 (180) and …", the most frequent first."""
    counts = {str(wanted): layers.count(wanted) for wanted in layers}
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return " and ".join(f"{name} ({count})" for name, count in ordered) or "any format"


def _document(outcome: "Outcome") -> dict[str, Any]:
    from dataclasses import asdict

    from .eval import document

    quantized = outcome.quantized
    reports = {"before": outcome.before, "after": outcome.after}
    return {
        "path": str(quantized.path),
        "default": asdict(quantized.base),
        "layers": {path: asdict(f) if f else None for path, f in quantized.plan.items()},
        "too_narrow": quantized.too_narrow,
        "parameters": quantized.parameters,
        "bytes": quantized.bytes,
        "bits_per_weight": quantized.bits_per_weight,
        "perplexity": {label: document(r) for label, r in reports.items() if r} or None,
    }
