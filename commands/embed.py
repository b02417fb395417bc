"""`pippin embed`: texts to vectors."""

import sys
from typing import TYPE_CHECKING, Any

import click

from ..runtime.errors import InputError
from .console import Progress, check_text, decode, print_json, print_table
from .options import (
    backend_option,
    json_option,
    offline_option,
    threads_option,
    weights_option,
)

if TYPE_CHECKING:
    import numpy as np


@click.command("embed")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--similarity", is_flag=True, help="Print how similar each text is to each instead.")
@backend_option
@weights_option
@threads_option
@offline_option
@json_option
def command(
    model: str,
    texts: tuple[str, ...],
    similarity: bool,
    offline: bool,
    as_json: bool,
    **loading: Any,
) -> None:
    """Print the vector that the encoder MODEL makes of each TEXT, one a line.

    Texts are read from stdin, one a line, when TEXT is - or left out. A text longer than the
    model takes is cut. --weights is fp32 unless it is given.
    """
    read = _read_texts(texts)
    from ..apps.embedders import load_embedder

    with Progress() as progress:
        embedder = load_embedder(model, fetch=not offline, stages=progress.stage, **loading)
        vectors = embedder.embed(read, progress.stage("embedding", "texts"))
    matrix = embedder.similarity(vectors, vectors) if similarity else None
    if as_json:
        document = {"model": model, "backend": embedder.backend, "texts": read}
        key, rows = ("vectors", vectors) if matrix is None else ("similarity", matrix)
        print_json(document | {key: rows.tolist()})
    elif matrix is None:
        for vector in vectors:
            click.echo(" ".join(f"{value:.8g}" for value in vector))
    else:
        _print_matrix(read, matrix)


def _read_texts(texts: tuple[str, ...]) -> list[str]:
    """The arguments, or stdin's lines. Raises InputError when there are none."""
    if texts not in ((), ("-",)):
        return [check_text(text, "a text") for text in texts]
    if sys.stdin is None or (not texts and sys.stdin.isatty()):
        raise InputError("no text; give some as arguments, or - to read one a line from stdin")
    read = decode(sys.stdin.buffer.read(), "text").splitlines()
    if not read:
        raise InputError("the text is empty; give at least one line")
    return read


def _print_matrix(texts: list[str], matrix: "np.ndarray") -> None:
    rows = [
        [str(index + 1), *(f"{value:.4f}" for value in row), _short(text)]
        for index, (row, text) in enumerate(zip(matrix, texts, strict=True))
    ]
    print_table(rows, ["", *(str(index + 1) for index in range(len(texts))), "text"])


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
