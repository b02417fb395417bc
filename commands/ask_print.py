"""What `pippin ask` shows in the terminal of an answer, as it comes."""

import shutil
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from .console import note, print_table, write

if TYPE_CHECKING:
    from ..apps.documents.answer import Event
    from ..apps.documents.passages import Passage
    from ..apps.documents.result import Names, Result

_MOST_COLUMNS = 6  # sentences whose attention has a column of its own
_CUT_OFF = {"repeated": "the model began to repeat itself", "length": "--max-tokens is reached"}
_NEAREST = 3  # sentences that are quoted where an answer has none for itself
_WIDEST = 96  # cells of a line, on a terminal that has more
_PLACE_WIDTHS = 18, 44  # cells, at least and at most


def show(event: "Event", result: "Result", names: "Names", attention: bool) -> None:
    """Write one event as it comes; `attention`: the passages wait for theirs."""
    from ..apps.documents import answer, reader

    match event:
        case answer.Found(_, taken) if taken is not None and not taken.empty:
            note(f"searched {taken.statement}")
        case answer.NotFound():
            _print_not_found(result, names)
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


def _line(text: str = "") -> None:
    write(f"{text}\n")


def _print_not_found(result: "Result", names: "Names") -> None:
    """What was near, too: the rule may be wrong."""
    _line(f"Not found in the document{'s' * (len(result.documents) > 1)}: {result.not_found}.")
    if result.found.hits:
        _line()
        _print_nearest(_passages(result), result.nearest, names)
        _print_passages(result, names)


def _end_answer(result: "Result", names: "Names") -> None:
    _line()
    if why := _CUT_OFF.get(result.answered.finish_reason):
        note(f"the answer ends early: {why}")
    _print_sources(result, names)


def _print_sources(result: "Result", names: "Names") -> None:
    """The quotations behind the marks, each once, and how many sentences have none."""
    answered = result.answered
    supports = [sentence.support for sentence in answered.sentences if sentence.support]
    quotes = [(answered.passages[s.passage], s.quote) for s in dict.fromkeys(supports)]
    for place, those in groupby(quotes, lambda quote: names.place(quote[0])):
        _line(f"\n{place}")
        for _, quote in those:
            _line(_quoted(quote))
    if answered.unsupported or not answered.sentences:
        _line(f"\n{result.without_source}")
        _print_nearest(answered.passages, answered.nearest, names)


def _print_nearest(passages: "Sequence[Passage]", sentences: Sequence[str], names: "Names") -> None:
    """Of the best passages the sentences that are nearest to the question."""
    pairs = list(zip(passages, sentences, strict=True))[:_NEAREST]
    if any(sentences[:_NEAREST]):
        _line("Nearest to the question:")
    for passage, sentence in pairs:
        if sentence:
            _line(f"\n{names.place(passage)}\n{_quoted(sentence)}")


def _quoted(text: str) -> str:
    return textwrap.fill(
        f"“{text}”", initial_indent="  ", subsequent_indent="  ", width=min(_width(), _WIDEST)
    )


def _width() -> int:
    """Cells of the terminal's row; where there is none, as many as we use."""
    return shutil.get_terminal_size((_WIDEST, 24)).columns


def _passages(result: "Result") -> "list[Passage]":
    """Those that the model got, or where it was not asked those that were found."""
    if result.answered is not None:
        return list(result.answered.passages)
    return [hit.passage for hit in result.found.hits]


def _print_passages(result: "Result", names: "Names") -> None:
    """What was found, and how much attention each of it got."""
    from ..apps.documents.attribution import CAVEAT, REST

    passages, attribution = _passages(result), result.attribution
    several = attribution.sentences if attribution else ()
    columns = [f"s{number}" for number in range(1, len(several) + 1)]
    if len(several) > _MOST_COLUMNS:
        several, columns = (attribution.mean,), ["attention"]
    rows = [
        [
            str(number + 1),
            names.place(passage),
            _figure(hit.similarity, ".2f"),
            _figure(hit.bm25, ".1f"),
            *(f"{share.passages[number]:.1%}" for share in several),
        ]
        for number, (passage, hit) in enumerate(zip(passages, result.found.hits, strict=False))
    ]
    if attribution is not None:
        for number, name in enumerate(REST):
            rows.append(["", name, "", "", *(f"{share.rest[number]:.1%}" for share in several)])
    _line()
    _print_table(rows, ["", "passage", "cosine", "BM25", *columns])
    if attribution is not None:
        layers = f"{attribution.layers[0]}–{attribution.layers[-1]}"
        whose = "s1, …: attention of each sentence" if columns[0] == "s1" else "attention"
        _line(f"{whose}, mean of all heads of layers {layers}.")
        _line(CAVEAT)
    elif result.not_attributed:
        note(f"no attention is shown: {result.not_attributed}")


def _print_table(rows: list[list[str]], headers: list[str]) -> None:
    """The table, its places cut to what the other columns leave of the row."""
    others = [max(map(len, column)) + 2 for column in zip(headers, *rows, strict=True)]
    least, most = _PLACE_WIDTHS
    room = max(least, min(most, _width() - sum(others) + others[1]))
    print_table([[row[0], _cut(row[1], room), *row[2:]] for row in rows], headers)


def _cut(text: str, cells: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
