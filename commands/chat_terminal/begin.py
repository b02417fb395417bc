"""How a chat at a terminal begins: the screen, the reader that suits it, and the banner."""

import sys
from collections.abc import Callable

from ...apps.chat.keeper import Keeper, Resumed
from ...apps.models import Model
from ..console import Progress
from .actions import COMMANDS, resume
from .completer import ChatCompleter
from .loop import ChatTerminal
from .readers import LineEditor, LineReader, Reader
from .screen import Screen, short_name


def begin(
    keeper: Keeper,
    resumed: Resumed | None,
    progress: Progress,
    load_model: Callable[[str], Model],
    show_stats: bool,
) -> None:
    """Talk until the user leaves; `resumed` is what came back with a saved conversation."""
    screen = Screen()
    chat = ChatTerminal(keeper, screen, progress, load_model, show_stats=show_stats)
    info = keeper.session.model.generator.engine.info
    screen.note(f"{short_name(info.model)} · {info.backend} · context {info.context:,} · /help")
    chat.reader = _reader(chat, screen)
    if resumed is not None:
        resume(chat, resumed)
    chat.run()


def _reader(chat: ChatTerminal, screen: Screen) -> Reader:
    if not screen.is_styled:
        out = sys.stdout if screen.is_terminal else sys.stderr

        def write_prompt(prompt: str) -> None:
            out.write(prompt)
            out.flush()

        return LineReader(write_prompt)
    store = chat.keeper.store
    completer = ChatCompleter(COMMANDS, chat.names)
    return LineEditor(completer, chat.toolbar, store.history_file if store else None)
