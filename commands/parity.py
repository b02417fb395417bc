"""`pippin parity`: prove that the backends say the same."""

from dataclasses import asdict
from pathlib import Path

import click

from .console import Progress, note, print_json, print_table
from .options import adapter_option, json_option, model_argument, offline_option


@click.command("parity")
@model_argument
@click.option(
    "--text",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Compare on this UTF-8 text instead of Pippin's own.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=33),
    default=512,
    show_default=True,
    help="Compare on the first TOKENS tokens of the text.",
)
@adapter_option
@offline_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    text: Path | None,
    tokens: int,
    adapter: Path | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Compare MODEL on MLX with each of its ONNX exports; exit with 1 if a row fails.

    Differences of logits are relative to the largest logit; KL is in nats.
    """
    from ..apps.models import open_with_adapter, require_mlx

    require_mlx("parity")
    from ..apps import parity
    from ..mlx_model.checkpoints import store

    with Progress() as progress:
        fetching = progress.stage(f"fetching {model}")
        path = store.resolve(model, fetch=not offline, progress=fetching)
        checkpoint = open_with_adapter(path, adapter)
        ids = parity.text_ids(checkpoint, text, tokens)
        rows = list(parity.parity(checkpoint, ids, started=lambda what: note(f"running {what}")))
    if as_json:
        print_json([asdict(row) | {"ok": row.ok} for row in rows])
    else:
        _print(rows)
    failed = sum(not row.ok for row in rows)
    note(f"parity of {model} on {len(ids)} tokens: {len(rows) - failed} of {len(rows)} rows hold")
    if failed:
        ctx.exit(1)


def _print(rows: list) -> None:
    print_table(
        [
            [
                "ok" if row.ok else "FAILED",
                row.pair,
                row.measure,
                f"{row.value:.3g}",
                f"{'≥' if row.at_least else '≤'} {row.limit:g}",
            ]
            for row in rows
        ],
        ["", "PAIR", "MEASURE", "VALUE", "LIMIT"],
    )
