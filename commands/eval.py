"""`pippin eval`: how good a model is; `perplexity` is the one measure so far."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Progress, note, print_json, print_table
from .console import read_text as read_stdin
from .options import SectionedCommand, json_option, model_argument, model_options

if TYPE_CHECKING:
    from ..apps.perplexity import Report


@click.group("eval")
def command() -> None:
    """Measure how good a model is."""


@command.command("perplexity", cls=SectionedCommand)
@model_argument
@click.argument("text", required=False, metavar="[TEXTFILE]")
@click.option(
    "--context", type=int, metavar="N", help="Tokens of a window.  [default: 512, or the model's]"
)
@click.option(
    "--stride", type=int, metavar="N", help="From window to window.  [default: a whole window]"
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    metavar="N",
    help="Read the first N tokens.  [default: all of TEXTFILE, 4096 of the built-in text]",
)
@model_options
@json_option
def perplexity(
    model: str,
    text: str | None,
    context: int | None,
    stride: int | None,
    max_tokens: int | None,
    as_json: bool,
    **loading: Any,
) -> None:
    """Measure how well MODEL foretells TEXTFILE (- is stdin).

    Without TEXTFILE it reads the language reference that comes with Python, whose sha256 is
    printed. Less is better; numbers compare only on the same text, context and stride.
    """
    from ..apps import perplexity as measures
    from ..apps.models import load_model

    if text is None:
        source = measures.built_in_text()
        max_tokens = max_tokens or measures.BUILT_IN_TOKENS
    elif text == "-":
        source = measures.Text(read_stdin("-", "text"), "stdin")
    else:
        source = measures.read_text(Path(text))
    with Progress() as progress:
        loaded = load_model(model, stages=progress.stage, **loading)
        report = measures.evaluate(
            loaded.generator,
            source,
            context=context,
            stride=stride,
            max_tokens=max_tokens,
            progress=progress.stage("reading the text", "tokens"),
        )
    backend = loaded.generator.engine.info.backend
    if as_json:
        print_json({"model": model, "backend": backend} | document(report))
    else:
        _print(report)
        note(f"{backend} on {report.text.source} (sha256 {report.text.sha256[:16]}…)")


def document(report: "Report") -> dict[str, Any]:
    """A report as --json prints it."""
    return {
        "perplexity": report.score.perplexity,
        "bits_per_byte": report.bits_per_byte,
        "tokens": report.tokens,
        "scored_tokens": report.score.scored,
        "bytes": report.bytes,
        "context": report.context,
        "stride": report.stride,
        "tokens_per_second": report.score.tokens_per_second,
        "text": {"source": report.text.source, "sha256": report.text.sha256},
    }


def _print(report: "Report") -> None:
    print_table(
        [
            ["perplexity", f"{report.score.perplexity:.4f}"],
            ["bits per byte", f"{report.bits_per_byte:.4f}"],
            ["tokens", f"{report.tokens:,}"],
            ["context", f"{report.context:,}"],
            ["stride", f"{report.stride:,}"],
            ["tokens/s", f"{report.score.tokens_per_second:.1f}"],
        ]
    )
