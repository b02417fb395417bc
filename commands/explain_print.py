"""`pippin explain` in the terminal."""

from typing import TYPE_CHECKING

import click

from .console import print_table
from .explain_maps import LEGEND, print_maps
from .explain_tables import (
    candidate_rows,
    counted,
    heads_part,
    reads_line,
    stage_line,
    step_facts,
    step_table,
    visible,
    why_chosen,
)

if TYPE_CHECKING:
    from ..apps.insight.heads import HeadReport
    from ..apps.insight.html import Part, Table
    from ..apps.insight.reading import Reading
    from ..apps.insight.walkthrough import Walkthrough

_CANDIDATES = ["", "RANK", "TOKEN", "LOGIT", "ADJUSTED", "PROBABILITY", "AFTER FILTERS"]
_LINE = 100


def print_reading(name: str, reading: "Reading") -> None:
    """One head step by step, then the reply token by token."""
    from ..apps.insight.explanation import CAVEAT

    step, backend = reading.step, reading.generator.engine.info.backend
    click.echo(
        f"{name} on {backend}: {counted(len(reading.tokens), 'token')}. "
        f"Query: token {step.query.index}, “{visible(step.query.text)}”; "
        f"layer {step.layer}, head {step.head}."
    )
    click.echo(f"Shown: {step.why}.\n")
    for number, fact in enumerate(step_facts(step), 1):
        click.echo(f"{number}. {fact}")
    click.echo()
    _print_rows(step_table(step))
    if reading.walk is not None:
        _print_walk(reading, reading.walk)
    click.echo(f"\n{CAVEAT}")


def walk_summary(walk: "Walkthrough") -> str:
    """What the reply was, and how sampled."""
    p = walk.params
    how = "greedy" if p.temperature == 0 else f"temperature {p.temperature:g}, seed {p.seed}"
    return f"The reply: {counted(len(walk.steps), 'token')}, {how}, ended by {walk.finish_reason}."


def other_graph_note(reading: "Reading") -> str:
    """That attention and reply come from two graphs, where they do."""
    if not reading.other_graph:
        return ""
    return (
        "It was made by the graph that rounds activations and keys to int8; what it read is shown "
        "as the graph in floats computes it. --precise makes both one."
    )


def print_heads(report: "HeadReport") -> None:
    """The best heads by each rule, then a picture of all for each rule."""
    from ..apps.insight.explanation import CAVEAT

    print_part(heads_part(report))
    click.echo(f"\nScores of all heads: a row a layer, a column a head. {LEGEND}")
    print_maps(report)
    click.echo(f"\n{CAVEAT}")


def print_part(part: "Part") -> None:
    """A section: its notes and tables. Charts are the page's."""
    click.echo(part.title)
    for text in part.notes:
        click.echo(click.wrap_text(text, _LINE))
    for table in part.tables:
        click.echo(f"\n{table.caption}" if table.caption else "")
        _print_rows(table)


def _print_rows(table: "Table") -> None:
    print_table(table.rows, [name.upper() for name, _ in table.headers])


def _print_walk(reading: "Reading", walk: "Walkthrough") -> None:
    click.echo(f"\n{walk_summary(walk)} {other_graph_note(reading)}".rstrip())
    seed = f"seed {walk.params.seed}"
    view = f"layer {reading.step.layer}, head {reading.step.head}"
    for number, (step, read) in enumerate(zip(walk.steps, reading.reads, strict=True)):
        click.echo(f"\n{number}  {why_chosen(step, seed)}")
        print_table(candidate_rows(step), _CANDIDATES)
        if line := stage_line(step):
            click.echo(f"Filters: {line}.")
        click.echo(f"Read by {view}: {reads_line(read)}.")
