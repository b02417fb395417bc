"""`/why`: what the model attended to when it chose a token of its last reply."""

from typing import TYPE_CHECKING

from ...runtime.errors import InputError
from ..console import table_lines

if TYPE_CHECKING:
    from ...apps.chat.why import Why
    from .loop import ChatTerminal

_CANDIDATES = ["", "RANK", "TOKEN", "LOGIT", "PROBABILITY"]


def why(chat: "ChatTerminal", argument: str) -> None:
    """Show one token of the last reply: the keys that were read, and what might have come."""
    from ...apps.chat.why import why as explain

    progress = chat.stages("reading the conversation again", "tokens")
    try:
        found = explain(chat.session, argument or None, progress)
    except KeyboardInterrupt:
        raise InputError("stopped") from None
    finally:
        chat.end_progress()
    for line in _lines(found):
        chat.screen.note(line, "")


def _lines(found: "Why") -> list[str]:
    from ...apps.insight.explanation import CAVEAT
    from ..explain_tables import step_table, visible

    step = found.step
    table = step_table(step)
    lines = [
        f"“{visible(found.chosen.text)}”, token {found.place} of the reply, was chosen after "
        f"“{visible(step.query.text)}”, token {step.query.index} of the conversation. There layer "
        f"{step.layer}, head {step.head} read:",
        "",
        *table_lines(table.rows, [name.upper() for name, _ in table.headers]),
        "",
        f"Shown: {step.why}.",
        "What might have come, by the model alone, before temperature and filters:",
        "",
        *table_lines(_candidate_rows(found), _CANDIDATES),
        "",
    ]
    if found.other_graph:
        lines.append(
            "The reply was made by the graph that rounds activations and keys to int8; this is the "
            "graph in floats. --precise makes both one."
        )
    return [*lines, CAVEAT]


def _candidate_rows(found: "Why") -> list[list[str]]:
    from ..explain_tables import percent, visible

    return [
        [
            "→" if one.token == found.chosen.id else "",
            str(one.rank + 1),
            visible(one.text),
            f"{one.logit:.2f}",
            percent(one.probability),
        ]
        for one in found.candidates
    ]
