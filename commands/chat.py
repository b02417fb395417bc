"""`pippin chat`: a conversation in the terminal, or one line of stdin a turn."""

import sys
from typing import TYPE_CHECKING, Any

import click

from .console import Progress, format_stats, note, write
from .options import (
    SAMPLING_HELP,
    SectionedCommand,
    draft_option,
    model_argument,
    model_options,
    sampling_options,
)
from .terminal import read_turns, stop_on_interrupt

if TYPE_CHECKING:
    from ..apps.chat import ChatSession


@click.command("chat", cls=SectionedCommand, epilog=SAMPLING_HELP)
@model_argument
@click.option("--system", metavar="TEXT", help="System prompt.")
@sampling_options
@draft_option
@model_options
@click.option("--stats", is_flag=True, help="Print counts and speeds to stderr after each turn.")
def command(
    model: str, system: str | None, stats: bool, sampling: dict[str, Any], **loading: Any
) -> None:
    """Talk to MODEL in the terminal.

    Each line of stdin is a turn; elsewhere than in a terminal, too. Ctrl-C stops a reply, and
    leaves when there is none; so does the end of input (Ctrl-D).
    """
    from ..apps.chat import ChatSession
    from ..apps.models import load_model
    from ..apps.reply import sampling_params
    from ..runtime.errors import ContextError

    sampling_params({}, sampling)  # before the model is loaded
    with Progress() as progress:
        session = ChatSession(
            load_model(model, stages=progress.stage, **loading), system=system, sampling=sampling
        )
        progress.close()
        for text in read_turns("> "):
            try:
                _turn(session, text, progress, stats)
            except ContextError as error:
                if not sys.stdin.isatty():
                    raise
                note(f"not said: {error}")


def _turn(session: "ChatSession", text: str, progress: Progress, stats: bool) -> None:
    reading = progress.stage("reading", "tokens")
    with stop_on_interrupt() as should_stop:
        for chunk in session.reply(text, progress=reading, should_stop=should_stop):
            progress.close()
            write(chunk.text)
    write("\n")
    if stats:
        note(format_stats(chunk.stats))
