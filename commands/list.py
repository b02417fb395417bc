"""`pippin list`: the models in the store."""

from dataclasses import asdict

import click

from .console import format_bytes, note, print_json, print_table
from .options import json_option


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """List the models in the store."""
    from ..mlx_model.checkpoints import store

    models = store.list_models()
    if as_json:
        print_json([asdict(model) | {"path": str(model.path)} for model in models])
    elif models:
        rows = [
            [m.name, m.kind, format_bytes(m.bytes), m.date[:10], m.source, str(m.path)]
            for m in models
        ]
        print_table(rows, ["NAME", "KIND", "SIZE", "FETCHED", "SOURCE", "PATH"])
    else:
        note(f"no models in {store.home()}; `pippin pull` fetches one")
