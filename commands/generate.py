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
    structured_options,
)

if TYPE_CHECKING:
    from ..apps.models import Model
    from ..apps.structured import Grammar, TokenConstraint
    from ..runtime.generator import Chunk


@click.command("generate", cls=SectionedCommand, epilog=SAMPLING_HELP)
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="System prompt, for a model made for chat.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as plain text, without a chat template.")
@structured_options
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
    grammar: "Grammar | None",
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
        constraint = _constraint(loaded, grammar)
        reading = progress.stage("reading the prompt", "tokens")
        chunks = stream_reply(loaded, asked, sampling, constraint=constraint, progress=reading)
        if as_json:
            made = list(chunks)
            print_json({"model": model} | _document(loaded, made, seconds))
            last = made[-1]
        else:
            last = _print(chunks, progress)
    if grammar is not None and last.finish_reason != "stop":
        note(f"the reply is incomplete ({last.finish_reason}), not yet what was asked for")
    if stats and not as_json:
        note(format_stats(last.stats))


def _constraint(model: "Model", grammar: "Grammar | None") -> "TokenConstraint | None":
    if grammar is None:
        return None
    from ..apps.structured import constraint_for

    return constraint_for(model.generator, grammar)


def _print(chunks: "Iterator[Chunk]", progress: Progress) -> "Chunk":
    """Write the chunks; the last one."""
    for chunk in chunks:
        progress.close()
        write(chunk.text)
    write("\n")
    return chunk


def _document(model: "Model", chunks: "list[Chunk]", load_seconds: float) -> dict[str, Any]:
    return {
        "backend": model.generator.engine.info.backend,
        "text": "".join(chunk.text for chunk in chunks),
        "tokens": [token for chunk in chunks for token in chunk.tokens],
        "finish_reason": chunks[-1].finish_reason,
        "load_seconds": load_seconds,
        **asdict(chunks[-1].stats),
    }
