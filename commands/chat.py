"""`pippin chat`: a conversation in the terminal, or one line of stdin a turn."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from .console import Progress, format_stats, note, write
from .options import (
    SAMPLING_HELP,
    SectionedCommand,
    draft_option,
    model_argument,
    model_options,
    sampling_options,
    structured_options,
)
from .terminal import piped_turns, stop_on_interrupt

if TYPE_CHECKING:
    from ..apps.chat.keeper import Keeper, Resumed
    from ..apps.structured import Grammar

_LAST = ""  # what --resume is given without an ID
# Kept with a conversation: how its model was loaded, and those of them that suit any model.
_LOADING = ("backend", "weights", "threads", "precise", "kv_bits", "adapter", "draft")
_FOR_ANY_MODEL = _LOADING[:5]


def _complete_chat(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    from ..apps.chat.saved import ChatStore

    return [CompletionItem(name) for name in ChatStore().names() if name.startswith(begun)]


@click.command("chat", cls=SectionedCommand, epilog=SAMPLING_HELP)
@model_argument
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option(
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=_LAST,
    shell_complete=_complete_chat,
    help="Go on with a saved conversation, with its model and settings.  [default: the last one]",
)
@click.option("--no-save", is_flag=True, help="Keep neither the conversation nor what is typed.")
@click.option(
    "--keep-cache",
    is_flag=True,
    help="Keep the KV cache too, so that resuming reads nothing anew.",
)
@structured_options
@sampling_options
@draft_option
@model_options
@click.option("--stats", is_flag=True, help="Print counts and speeds to stderr after each turn.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    system: str | None,
    resume: str | None,
    no_save: bool,
    keep_cache: bool,
    stats: bool,
    sampling: dict[str, Any],
    grammar: "Grammar | None",
    fetch: bool,
    **loading: Any,
) -> None:
    """Talk to MODEL in the terminal; /help lists what else can be typed.

    Ctrl-C stops a reply, and leaves when there is none; so does the end of input (Ctrl-D). A
    conversation is saved as it goes, and --resume goes on with it. Where stdin is no terminal,
    each of its lines is a turn.
    """
    from ..apps.chat import ChatSession
    from ..apps.chat.documents import AttachedDocuments
    from ..apps.chat.keeper import Keeper
    from ..apps.chat.saved import ChatStore
    from ..apps.embedders import load_embedder
    from ..apps.models import load_model
    from ..apps.reply import sampling_params

    sampling_params({}, sampling)  # before the model is loaded
    store, name = ChatStore(), None
    loading = {"name": model, **loading}
    if resume is not None:
        name = store.find(resume or None)
        loading |= _as_saved(ctx, store.read(name).loading)
    typed = sys.stdin is not None and sys.stdin.isatty()
    with Progress() as progress:

        def load(name: str, **other: Any) -> Any:
            return load_model(name, stages=progress.stage, fetch=fetch, repeatable=True, **other)

        session = ChatSession(load(**loading), sampling=sampling)
        progress.close()
        keeps = not no_save and (typed or name is not None)
        documents = AttachedDocuments(
            lambda: load_embedder("minilm", fetch=fetch, stages=progress.stage)
        )
        keeper = Keeper(session, _kept(loading), store if keeps else None, documents)
        resumed = keeper.load(name, sampling) if name is not None else None
        if grammar is not None:
            session.hold_to(grammar)
        if keep_cache:
            keeper.settings["keep_cache"] = "on"
        if system is not None:
            session.system = system
        if typed:
            _talk(keeper, resumed, progress, load, stats)
        else:
            _answer_lines(keeper, resumed, progress, stats)


def _as_saved(ctx: click.Context, saved: dict[str, Any]) -> dict[str, Any]:
    """How the saved conversation's model was loaded, but for what the user says anew."""
    given = {"name": "model"} | {name: name for name in _LOADING}
    return {
        name: Path(saved[name]) if name == "adapter" else saved[name]
        for name, option in given.items()
        if name in saved and ctx.get_parameter_source(option) == ParameterSource.DEFAULT
    }


def _kept(loading: dict[str, Any]) -> dict[str, Any]:
    """`loading` as it is good in any directory."""
    from ..apps.chat.keeper import lasting_name

    adapter = loading["adapter"] and str(Path(loading["adapter"]).expanduser().absolute())
    names = {k: loading[k] and lasting_name(loading[k]) for k in ("name", "draft")}
    return loading | names | {"adapter": adapter}


def _talk(
    keeper: "Keeper", resumed: "Resumed | None", progress: Progress, load: Any, stats: bool
) -> None:
    from .chat_terminal.begin import begin

    def load_another(name: str) -> Any:
        options = {k: keeper.loading[k] for k in _FOR_ANY_MODEL if k in keeper.loading}
        try:
            return load(name, **options)
        finally:
            progress.close()

    begin(keeper, resumed, progress, load_another, stats)


def _answer_lines(
    keeper: "Keeper", resumed: "Resumed | None", progress: Progress, stats: bool
) -> None:
    if resumed is not None:
        for line in keeper.documents.restore(resumed.saved.documents, progress.stage):
            note(line)
    for text in piped_turns():
        _turn(keeper, text, progress, stats)
        keeper.save()
    keeper.save_cache()
    keeper.documents.close()


def _turn(keeper: "Keeper", text: str, progress: Progress, stats: bool) -> None:
    from .chat_terminal.sources import found_lines, source_lines

    session, documents = keeper.session, keeper.documents
    found = documents.look_up(text, session.fits_share) if documents else None
    for line in found_lines(found) if found else ():
        note(line)
    files = found.attachments if found else ()
    reading = progress.stage("reading", "tokens")
    with stop_on_interrupt() as should_stop:
        chunks = session.reply(text, attachments=files, progress=reading, should_stop=should_stop)
        for chunk in chunks:
            progress.close()
            write(chunk.text)
    write("\n")
    if found is not None and found.passages:
        for line in source_lines(documents, found, session.last_reply or ""):
            note(line)
    if stats:
        note(format_stats(chunk.stats))
