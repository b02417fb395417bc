"""`pippin generate`: one answer to one prompt."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .console import Progress, format_stats, note, print_json, read_text, write
from .options import (
    SAMPLING_HELP,
    SectionedCommand,
    draft_option,
    json_option,
    model_options,
    sampling_options,
)

if TYPE_CHECKING:
    from ..apps.models import Model
    from ..runtime.generator import Chunk


@click.command("generate", cls=SectionedCommand, epilog=SAMPLING_HELP)
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="System prompt, for a model made for chat.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as plain text, without a chat template.")
@sampling_options
@draft_option
@model_options
@click.option("--stats", is_flag=True, help="Print counts and speeds to stderr.")
@json_option
def command(
    model: str,
    prompt: str | None,
    system: str | None,
    raw: bool,
    stats: bool,
    as_json: bool,
    sampling: dict[str, Any],
    **loading: Any,
) -> None:
    """Print MODEL's answer to PROMPT.

    PROMPT is read from stdin when it is - or left out. A model made for chat takes PROMPT as one
    turn of a conversation; other models, and all of them with --raw, continue it.
    """
    text = read_text(prompt, "prompt")
    from ..apps.models import load_model
    from ..apps.reply import as_prompt, sampling_params, stream_reply

    sampling_params({}, sampling)  # before the model is loaded
    started = time.perf_counter()
    with Progress() as progress:
        loaded = load_model(model, stages=progress.stage, **loading)
        seconds = time.perf_counter() - started
        asked = as_prompt(loaded.generator, text, system, raw)
        reading = progress.stage("reading the prompt", "tokens")
        chunks = stream_reply(loaded, asked, sampling, progress=reading)
        if as_json:
            document = _document(loaded, list(chunks), seconds)
            print_json({"model": model} | document)
        else:
            _print(chunks, progress, stats)


def _print(chunks: "Iterator[Chunk]", progress: Progress, stats: bool) -> None:
    for chunk in chunks:
        progress.close()
        write(chunk.text)
    write("\n")
    if stats:
        note(format_stats(chunk.stats))


def _document(model: "Model", chunks: "list[Chunk]", load_seconds: float) -> dict[str, Any]:
    return {
        "backend": model.generator.engine.info.backend,
        "text": "".join(chunk.text for chunk in chunks),
        "tokens": [token for chunk in chunks for token in chunk.tokens],
        "finish_reason": chunks[-1].finish_reason,
        "load_seconds": load_seconds,
        **asdict(chunks[-1].stats),
    }
