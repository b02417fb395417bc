"""`pippin explain`: what attention did with a text, and how a reply came to be."""

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..runtime.errors import InputError
from .console import Progress, note, print_json, read_text
from .options import (
    SAMPLING_HELP,
    SectionedCommand,
    json_option,
    model_argument,
    model_options,
    sampling_options,
)

if TYPE_CHECKING:
    from ..apps.insight.heads import HeadReport
    from ..apps.insight.html import Part
    from ..apps.insight.reading import Reading
    from ..apps.models import Model

_LAYERS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def _parse_layers(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    """`3,7,12-15` as numbers."""
    if text is None:
        return None
    layers: list[int] = []
    for piece in text.split(","):
        match = _LAYERS.fullmatch(piece.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise click.BadParameter(f"{piece!r:.60} does not read N or N-N, like 3,7,12-15")
        layers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return layers


@click.command("explain", cls=SectionedCommand, epilog=SAMPLING_HELP)
@model_argument
@click.argument("text", required=False)
@click.option(
    "--token",
    metavar="N|TEXT",
    help="The query: an index, or a piece of TEXT that ends with it.  [default: the last token]",
)
@click.option("--layer", type=int, metavar="N", help="From 0.  [default: chosen as said above]")
@click.option("--head", type=int, metavar="N", help="From 0.  [default: chosen as said above]")
@click.option(
    "--top",
    type=click.IntRange(1, 64),
    metavar="N",
    default=8,
    show_default=True,
    help="Keys of a query, and candidates for a token, that are shown.",
)
@click.option(
    "--chat", is_flag=True, help="Take TEXT as a turn of a conversation, as generate does."
)
@click.option(
    "--generate",
    type=click.IntRange(min=1),
    metavar="N",
    help="Reply to TEXT with up to N tokens, and show how each was chosen.",
)
@click.option("--heads", is_flag=True, help="Score every head by what it does on probe texts.")
@click.option("--block", is_flag=True, help="Parameters, arithmetic and memory of MODEL.")
@click.option(
    "--length",
    type=int,
    metavar="N",
    help="Tokens that --block counts for.  [default: those of TEXT, or the longest context]",
)
@click.option("--versus-rnn", is_flag=True, help="Measure an LSTM beside a decoder, without MODEL.")
@click.option("--positions", is_flag=True, help="Schemes of positions by distance, without MODEL.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page that shows all of it, and every token of TEXT as the query.",
)
@click.option(
    "--layers",
    metavar="LIST",
    callback=_parse_layers,
    help="Layers that the page holds, like 3,7,12-15.  [default: as many as 9 MB have room for]",
)
@partial(sampling_options, without=("max_tokens", "prompt_lookup"))
@model_options
@json_option
def command(
    model: str,
    text: str | None,
    token: str | None,
    layer: int | None,
    head: int | None,
    top: int,
    chat: bool,
    generate: int | None,
    heads: bool,
    block: bool,
    length: int | None,
    versus_rnn: bool,
    positions: bool,
    html: Path | None,
    layers: list[int] | None,
    sampling: dict[str, Any],
    as_json: bool,
    **loading: Any,
) -> None:
    """Show what attention in MODEL did with TEXT, step by step.

    For one token (the query), layer and head: which keys it read, with scores and weights, down to
    the weighted sum of values. Without --layer and --head it is, of the middle third of the layers,
    the head that gives least weight to the first token, to the one before the query and to the
    query itself. TEXT is read from stdin when it is -. --heads, --block, --versus-rnn and
    --positions need no TEXT, and are shown after what is said of one.

    Attention is not an explanation: a weight says what a head read, not why the model answered as
    it did.
    """
    _check_pairs(generate, sampling, html, layers, block, length)
    if versus_rnn:
        _check_mlx()
    others = heads or block or versus_rnn or positions
    about_text = chat or any(x is not None for x in (text, token, layer, head, generate, layers))
    words = read_text(text, "text") if about_text or not others else None
    of_model = words is not None or heads or block
    show = _Show(model if of_model else None, as_json, html, loading)
    with Progress() as progress:
        show.load(progress, words is not None or heads, sampling)
        if words is not None:
            which = {"token": token, "layer": layer, "head": head, "top": top}
            reply = {"chat": chat, "generate": generate, "sampling": sampling}
            show.read(words, which | reply, layers, progress)
        if heads:
            show.score_heads(progress)
        if block:
            show.count_block(length, progress)
        if positions:
            show.draw_positions()
        if versus_rnn:
            show.measure_recurrence(loading["threads"])
    show.finish()


def _check_pairs(
    generate: int | None,
    sampling: dict[str, Any],
    html: Path | None,
    layers: list[int] | None,
    block: bool,
    length: int | None,
) -> None:
    """Raise for an option that does nothing without another, and for a folder that is not there."""
    if sampling and generate is None:
        name = "--" + next(iter(sampling)).replace("_", "-")
        raise click.UsageError(f"{name} says how a reply is sampled; give --generate N as well")
    if layers is not None and html is None:
        raise click.UsageError("--layers is for the page; give --html FILE as well")
    if length is not None and not block:
        raise click.UsageError("--length is for --block; give that as well")
    if html is not None and not html.name:
        raise click.UsageError("--html names no file; give one, like page.html")
    if html is not None and not html.absolute().parent.is_dir():
        raise click.UsageError(f"there is no directory {html.parent} to write {html.name} to")


def _check_mlx() -> None:
    """Raise now rather than after all else was computed."""
    from ..apps.models import has_mlx

    if not has_mlx():
        raise InputError(
            "--versus-rnn needs MLX, which cannot be imported here; it runs on macOS (arm64) and "
            "Linux"
        )


class _Show:
    """Gathers what was asked for, then shows it in the three forms."""

    def __init__(
        self, model: str | None, as_json: bool, html: Path | None, loading: dict[str, Any]
    ) -> None:
        """`model` is None where all that is asked for is computed without one."""
        self._name, self._as_json, self._html, self._loading = model, as_json, html, loading
        self._loaded: Model | None = None
        self._reading: Reading | None = None
        self._heads: HeadReport | None = None
        self._parts: list[Part] = []
        self._data: dict[str, Any] = {} if model is None else {"model": model}
        self._attention: dict[str, Any] | None = None
        self._held = ""

    def load(self, progress: Progress, needed: bool, sampling: dict[str, Any]) -> None:
        """Load the model where something `needed` it; bad sampling values are found before."""
        from ..apps.models import load_model
        from ..apps.reply import sampling_params

        sampling_params({}, sampling)
        if needed:
            self._loaded = load_model(self._name, stages=progress.stage, **self._loading)

    def read(
        self, words: str, options: dict[str, Any], layers: list[int] | None, progress: Progress
    ) -> None:
        """The text, one head, and the reply if there is to be one."""
        from ..apps.insight.page_data import attention_data, reading_data
        from ..apps.insight.reading import read_text as read

        stage = progress.stage("reading the text", "tokens")
        self._reading = read(self._loaded, words, **options, progress=stage)
        self._data |= reading_data(self._reading)
        if self._html is not None:
            stage = progress.stage("gathering what every token read", "layers")
            self._attention, self._held = attention_data(
                self._reading, layers, options["top"], progress=stage
            )

    def score_heads(self, progress: Progress) -> None:
        """Every head by every rule."""
        from ..apps.insight.explanation import CAVEAT
        from ..apps.insight.heads import score_heads
        from ..apps.insight.page_data import heads_data

        generator = self._loaded.generator
        self._heads = score_heads(generator, progress.stage("scoring heads", "texts"))
        self._data |= {"backend": generator.engine.info.backend, "caveat": CAVEAT}
        self._data["heads"] = heads_data(self._heads)

    def count_block(self, length: int | None, progress: Progress) -> None:
        """Parameters, arithmetic and memory."""
        from ..apps.insight.block import read_block
        from ..apps.models import is_exported
        from ..mlx_model.checkpoints import store
        from .explain_tables import block_part

        path, fetch = Path(self._name).expanduser(), self._loading["fetch"]
        if not is_exported(path):
            stage = progress.stage(f"fetching {self._name}")
            path = store.resolve(self._name, fetch=fetch, progress=stage)
        if length is None and self._reading is not None:
            length = len(self._reading.tokens)
        engine = self._loaded.generator.engine if self._loaded else None
        numbers = read_block(path, self._name, length, engine)
        self._data["block"] = asdict(numbers)
        self._parts.append(block_part(numbers))

    def draw_positions(self) -> None:
        """Schemes of positions by distance."""
        from ..apps.insight.page_data import positions_data
        from ..apps.insight.position_curves import position_curves
        from .explain_tables import positions_part

        curves = position_curves()
        self._data["positions"] = positions_data(curves)
        self._parts.append(positions_part(curves))

    def measure_recurrence(self, threads: int | None) -> None:
        """An LSTM beside a decoder."""
        from ..apps.insight.recurrence.measure import measure_recurrence
        from .explain_tables import recurrence_part

        report = measure_recurrence(note, threads=threads)
        self._data["recurrence"] = asdict(report)
        self._parts.append(recurrence_part(report))

    def finish(self) -> None:
        """Write the page, then print."""
        if self._html is not None:
            self._write_page()
        if self._as_json:
            print_json(self._data)
            return
        from .explain_print import print_heads, print_part, print_reading

        sections = [partial(print_part, part) for part in self._parts]
        if self._heads is not None:
            sections.insert(0, partial(print_heads, self._heads))
        if self._reading is not None:
            sections.insert(0, partial(print_reading, self._name, self._reading))
        for number, print_section in enumerate(sections):
            if number:
                click.echo()
            print_section()

    def _write_page(self) -> None:
        from ..apps.insight.html import write_page
        from .explain_page import page_document

        document = page_document(self._name, self._data, self._reading, self._attention)
        title = f"Pippin explains {self._name or 'recurrence and positions'}"
        size = write_page(self._html, title, document, self._parts)
        held = f": {self._held}" if self._held else ""
        note(f"wrote {self._html}, {size / 1e6:.1f} MB{held}")
