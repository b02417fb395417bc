"""`pippin inspect`: what a model consists of and what it needs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Progress, format_bytes, print_json, print_table
from .options import adapter_option, json_option, model_argument, offline_option

if TYPE_CHECKING:
    from ..apps.inspect import Inspection


@click.command("inspect")
@model_argument
@click.option(
    "--context", type=int, help="Tokens to compute memory for.  [default: the model's longest]"
)
@adapter_option
@offline_option
@json_option
def command(
    model: str, context: int | None, adapter: Path | None, offline: bool, as_json: bool
) -> None:
    """Show MODEL's parameters and memory.

    Also the scores that attention would write if it were not fused. Everything comes from the
    config and the files' headers; no weight is read.
    """
    from ..apps.inspect import inspect_model
    from ..mlx_model.checkpoints import store

    with Progress() as progress:
        path = store.resolve(model, fetch=not offline, progress=progress.stage(f"fetching {model}"))
    inspection = inspect_model(path, model, context, adapter)
    if as_json:
        print_json(_document(inspection))
    else:
        _print(inspection)


def _document(inspection: "Inspection") -> dict[str, Any]:
    return asdict(inspection) | {
        "parameters": inspection.parameters,
        "weight_bytes": inspection.weight_bytes,
    }


def _print(inspection: "Inspection") -> None:
    config = inspection.config
    click.echo(
        f"{inspection.model}: {config.family}, {config.layers} layers, hidden size "
        f"{config.hidden_size}, {config.heads} heads ({config.kv_heads} for keys and values) of "
        f"{config.head_dim}, vocabulary {config.vocab_size}, context {config.context}\n"
    )
    total, size = inspection.parameters, inspection.weight_bytes
    rows = [
        [
            part.name,
            f"{part.parameters:,}",
            f"{part.parameters / total:.1%}",
            format_bytes(part.bytes),
            f"{part.bytes / size:.1%}",
        ]
        for part in inspection.components
    ]
    rows.append(["all", f"{total:,}", "100.0%", format_bytes(size), "100.0%"])
    print_table(rows, ["COMPONENT", "PARAMETERS", "SHARE", "STORED", "SHARE"])
    if (adapter := inspection.adapter) is not None:
        click.echo(
            f"\nAdapter: {adapter.format} {adapter.method}, {adapter.parameters:,} parameters in "
            f"{adapter.layers} layers, fused when the model is loaded; the weights then take "
            f"{format_bytes(size + adapter.added_bytes)}"
        )
    click.echo(
        f"\nAt a context of {inspection.context:,} tokens, by the type of keys and values:\n"
    )
    costs = inspection.costs
    lines = [
        ("KV cache per token", [cost.kv_per_token for cost in costs]),
        ("KV cache", [cost.kv_cache for cost in costs]),
        ("weights + KV cache", [cost.total for cost in costs]),
        ("naive L×L scores, one layer", [cost.naive_scores_layer for cost in costs]),
        ("naive L×L scores, all layers", [cost.naive_scores_all for cost in costs]),
    ]
    print_table(
        [[label, *map(format_bytes, values)] for label, values in lines],
        ["", *(cost.dtype.upper() for cost in costs)],
    )
