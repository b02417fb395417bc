"""`pippin ask`: a question to the user's own documents."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..runtime.errors import InputError
from .ask_print import show
from .console import Progress, note, print_json, read_text, write
from .options import DEFAULT_MODEL, SectionedCommand, json_option, model_options

if TYPE_CHECKING:
    from ..apps.documents.index import Index
    from ..apps.documents.pages import Document


@click.command("ask", cls=SectionedCommand)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.argument("question")
@click.option("--model", "-m", default=DEFAULT_MODEL, show_default=True, help="Who answers.")
@click.option(
    "--top",
    type=click.IntRange(1, 50),
    default=5,
    show_default=True,
    metavar="K",
    help="Passages that the model gets, at most.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="N",
    help="Tokens of the answer, at most.",
)
@click.option(
    "--attention/--no-attention",
    default=True,
    show_default=True,
    help="Show how much of its attention each sentence gave to each passage.",
)
@click.option(
    "--without-passages",
    is_flag=True,
    help="Answer once more from the model alone, for contrast.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with the pages and the quoted sentences on them.",
)
@click.option("--ocr/--no-ocr", default=True, show_default=True, help="Read scanned pages.")
@model_options
@json_option
def command(
    files: tuple[str, ...],
    question: str,
    model: str,
    top: int,
    max_tokens: int,
    attention: bool,
    without_passages: bool,
    html: Path | None,
    ocr: bool,
    as_json: bool,
    **loading: Any,
) -> None:
    """Answer QUESTION from what stands in FILE..., with the pages that it rests on.

    A FILE is a PDF, text, Markdown or HTML; it is indexed the first time. QUESTION comes last; -
    reads it from stdin. It may name pages or a section: "What does page 47 say about pipes?" A mark
    such as [p. 47] stands after a sentence only where a quotation on that page bears it out.
    """
    paths = _check_files(files, question)
    question = _check_question(question, files)
    _check_output(html, paths)
    from ..apps.documents.answer import Options, ask
    from ..apps.documents.index import open_index
    from ..apps.documents.result import Names, Result, to_json
    from ..apps.embedders import load_embedder
    from ..apps.models import load_model

    options = Options(top, max_tokens, attention, without_passages)
    with Progress() as progress:
        loaded = load_model(model, stages=progress.stage, **loading)
        embedder = load_embedder("minilm", fetch=loading["fetch"], stages=progress.stage)
        with open_index(None, embedder) as index:
            documents = _documents(index, paths, progress, ocr)
            info = loaded.generator.engine.info
            result, names = Result(question, model, info.backend, documents), Names(documents)
            events = ask(
                loaded,
                index,
                question,
                options,
                documents=[document.sha256 for document in documents],
                embedder=embedder,
                stages=progress.stage,
            )
            for event in events:
                progress.close()
                result.add(event)
                if not as_json:
                    show(event, result, names, attention)
    if as_json:
        print_json(to_json(result))
    elif result.contrast is not None:
        write("\n")
    if html is not None:
        from ..apps.documents.report import write_report

        write_report(result, html.expanduser())
        note(f"wrote {html}")


def _documents(
    index: "Index", paths: Sequence[Path], progress: Progress, ocr: bool
) -> "tuple[Document, ...]":
    """The files, indexed, each content once, under the name that it was given here."""
    from ..apps.documents.result import has_text, page_notes

    given = dict(zip(index.add(paths, progress.stage, ocr=ocr), paths, strict=True))
    progress.close()
    found = ((index.document(sha256), path) for sha256, path in given.items())
    documents = tuple(replace(document, path=path) for document, path in found if document)
    notes = page_notes(documents)
    if not any(map(has_text, documents)):
        raise InputError("; ".join(notes))
    for line in notes:
        note(line)
    return documents


def _check_files(names: Sequence[str], question: str) -> list[Path]:
    from ..apps.documents.user_file import existing

    if not names and not _is_file(question):
        raise InputError('no FILE; files come first, the question last: pippin ask FILE "QUESTION"')
    paths = []
    for name in names:
        try:
            paths.append(existing(name))
        except InputError as error:
            hint = "; QUESTION is the last argument, in quotes" if paths else ""
            raise InputError(f"{error}{hint}") from None
    return paths


def _is_file(argument: str) -> bool:
    with contextlib.suppress(OSError, ValueError):  # a question may be no possible name
        return argument != "-" and Path(argument).expanduser().is_file()
    return False


def _check_question(argument: str, files: Sequence[str]) -> str:
    if _is_file(argument):
        raise InputError(
            f"the last argument, {argument}, is a file; the question comes last: "
            f'pippin ask {" ".join([*files, argument])} "QUESTION"'
        )
    question = read_text(argument, "question")
    if not question.strip():
        raise InputError("the question is empty; ask about what is in the documents")
    return question


def _check_output(html: Path | None, files: Sequence[Path]) -> None:
    """Raise InputError for a report that could not be written, before any work is done."""
    if html is None:
        return
    path = html.expanduser()
    if not path.parent.is_dir():
        raise InputError(f"there is no directory {html.parent} to write {html.name} to; make it")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{html.parent} cannot be written to; name another --html file")
    if path.exists() and any(map(path.samefile, files)):
        raise InputError(f"--html {html} would overwrite the document; name another file")
