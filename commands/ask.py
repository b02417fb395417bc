"""`pippin ask`: a question to the user's own documents."""

import contextlib
import textwrap
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..runtime.errors import InputError
from .console import Progress, note, print_json, print_table, read_text, write
from .options import DEFAULT_MODEL, SectionedCommand, json_option, model_options

if TYPE_CHECKING:
    from ..apps.documents.answer import Event
    from ..apps.documents.result import Names, Result

_MOST_COLUMNS = 6  # sentences whose attention has a column of its own
_CUT_OFF = {"repeated": "the model began to repeat itself", "length": "--max-tokens is reached"}
_NEAREST = 3  # sentences that are quoted where an answer has none for itself
_PLACE_WIDTH = 44


@click.command("ask", cls=SectionedCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
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
    paths = [_check_file(name) for name in files]
    question = _check_question(question, files)
    _check_output(html)
    from ..apps.documents.answer import Options, ask
    from ..apps.documents.index import open_index
    from ..apps.documents.result import Names, Result, page_notes, to_json
    from ..apps.embedders import load_embedder
    from ..apps.models import load_model

    options = Options(top, max_tokens, attention, without_passages)
    with Progress() as progress:
        loaded = load_model(model, stages=progress.stage, **loading)
        embedder = load_embedder("minilm", fetch=loading["fetch"], stages=progress.stage)
        with open_index(None, embedder) as index:
            added = list(dict.fromkeys(index.add(paths, progress.stage, ocr=ocr)))
            documents = tuple(filter(None, map(index.document, added)))
            for line in page_notes(documents):
                note(line)
            info = loaded.generator.engine.info
            result, names = Result(question, model, info.backend, documents), Names(documents)
            events = ask(
                loaded,
                index,
                question,
                options,
                documents=added,
                embedder=embedder,
                stages=progress.stage,
            )
            for event in events:
                progress.close()
                result.add(event)
                if not as_json:
                    _show(event, result, names, attention)
        if html is not None:
            from ..apps.documents.report import write_report

            write_report(result, html.expanduser())
            note(f"wrote {html}")
    if as_json:
        print_json(to_json(result))
    elif result.contrast is not None:
        write("\n")


def _check_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        raise InputError(f"{name} is a directory; give the files in it")
    if path.exists():
        return path
    try:
        others = [other.name for other in path.parent.iterdir()]
    except OSError:
        raise InputError(f"there is no file {name}: there is no directory {path.parent}") from None
    near = get_close_matches(path.name, others, n=1)
    hint = f"did you mean {path.parent / near[0]}?" if near else "files come first, QUESTION last"
    raise InputError(f"there is no file {name}; {hint}")


def _check_question(argument: str, files: tuple[str, ...]) -> str:
    with contextlib.suppress(OSError, ValueError):  # a question may be no possible name
        if argument != "-" and Path(argument).expanduser().is_file():
            raise InputError(
                f"the last argument, {argument}, is a file; the question comes last: "
                f'pippin ask {" ".join(files)} {argument} "QUESTION"'
            )
    question = read_text(argument, "question")
    if not question.strip():
        raise InputError("the question is empty; ask about what is in the documents")
    return question


def _check_output(html: Path | None) -> None:
    """Raise InputError for a report that could not be written, before any work is done."""
    if html is not None and not html.expanduser().parent.is_dir():
        raise InputError(f"there is no directory {html.parent} to write {html.name} to; make it")


def _show(event: "Event", result: "Result", names: "Names", attention: bool) -> None:
    """Write one event as it comes; `attention`: the passages wait for theirs."""
    from ..apps.documents import answer, reader

    match event:
        case answer.Found(_, taken) if taken is not None and not taken.empty:
            note(f"searched {taken.statement}")
        case answer.NotFound(reason):
            click.echo(f"This is not in the document{'s' * (len(result.documents) > 1)}: {reason}.")
        case answer.Text(text):
            write(text)
        case reader.Sentence(_, support) if support is not None:
            write(f" {names.mark(result.found.hits[support.passage].passage)}")
        case answer.Answered():
            _end_answer(result, names)
            if not attention:
                _print_passages(result, names)
        case answer.Attributed() | answer.NotAttributed():
            _print_passages(result, names)
        case answer.Contrast(text):
            if result.contrast == text:  # the first piece
                write("\nWithout the passages the model says:\n\n")
            write(text)


def _end_answer(result: "Result", names: "Names") -> None:
    write("\n")
    if why := _CUT_OFF.get(result.answered.finish_reason):
        note(f"the answer ends early: {why}")
    _print_sources(result, names)


def _print_sources(result: "Result", names: "Names") -> None:
    """The quotations behind the marks, each once, and how many sentences have none."""
    answered = result.answered
    supports = [sentence.support for sentence in answered.sentences if sentence.support]
    for support in dict.fromkeys(supports):
        passage = answered.passages[support.passage]
        click.echo(f"\n{names.place(passage)}")
        click.echo(_quoted(support.quote))
    missing, count = answered.unsupported, len(answered.sentences)
    if count and not missing:
        return
    click.echo(f"\n{missing} of {count} sentences without a source on these pages.")
    click.echo("Nearest to the question:")
    for passage, sentence in list(zip(answered.passages, answered.nearest, strict=True))[:_NEAREST]:
        if sentence:
            click.echo(f"\n{names.place(passage)}\n{_quoted(sentence)}")


def _quoted(text: str) -> str:
    return textwrap.fill(f"“{text}”", initial_indent="  ", subsequent_indent="  ", width=96)


def _print_passages(result: "Result", names: "Names") -> None:
    """What was found, and how much attention each of it got."""
    from ..apps.documents.attribution import CAVEAT

    answered, attribution = result.answered, result.attribution
    shown = attribution.sentences if attribution else ()
    columns = [f"s{number}" for number in range(1, len(shown) + 1)]
    if len(shown) > _MOST_COLUMNS:
        shown, columns = (attribution.mean,), ["attention"]
    headers = ["", "passage", "cosine", "BM25", *columns]
    rows = [
        [
            str(number + 1),
            textwrap.shorten(names.place(passage), _PLACE_WIDTH, placeholder="…"),
            _figure(hit.similarity, ".2f"),
            _figure(hit.bm25, ".1f"),
            *(f"{share.passages[number]:.1%}" for share in shown),
        ]
        for number, (passage, hit) in enumerate(
            zip(answered.passages, result.found.hits, strict=False)
        )
    ]
    if attribution is not None:
        for name, field in (
            ("first token", "first"),
            ("question and task", "prompt"),
            ("answer so far", "answer"),
        ):
            rows.append(["", name, "", "", *(f"{getattr(one, field):.1%}" for one in shown)])
    click.echo()
    print_table(rows, headers)
    if attribution is not None:
        layers = f"{attribution.layers[0]}–{attribution.layers[-1]}"
        click.echo(f"s1, …: attention of each sentence, mean of all heads of layers {layers}.")
        click.echo(CAVEAT)
    elif result.not_attributed:
        note(f"no attention is shown: {result.not_attributed}")


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
