"""`/attach`: files with the next message, documents with the whole conversation."""

from typing import TYPE_CHECKING

from ...apps.documents.pages import Document
from ...runtime.errors import InputError
from .sources import document_lines

if TYPE_CHECKING:
    from .loop import ChatTerminal

_OFF = "off"


def attach(chat: "ChatTerminal", argument: str) -> None:
    """Attach a file, list what is attached, or detach it."""
    word, _, name = argument.partition(" ")
    if not argument:
        _list(chat)
    elif word == _OFF:
        _detach(chat, _unquoted(name))
    else:
        _attach(chat, _unquoted(argument))


def restore(chat: "ChatTerminal", saved: list[dict[str, str]]) -> None:
    """Attach the documents of a conversation that came back."""
    try:
        for line in chat.keeper.documents.restore(saved, chat.stages):
            chat.screen.note(line, "yellow")
    except KeyboardInterrupt:
        chat.screen.note("stopped; not every document is attached again", "yellow")
    finally:
        chat.end_progress()
    for line in document_lines(chat.keeper.documents.documents):
        chat.screen.note(line)


def words(chat: "ChatTerminal") -> list[str]:
    """What can be typed after `/attach`, beside a file."""
    attached = _names(chat)
    return [_OFF, *(f"{_OFF} {name}" for name in attached)] if attached else []


def _attach(chat: "ChatTerminal", name: str) -> None:
    try:
        found = chat.keeper.documents.attach(name, chat.session.fits_share, chat.stages)
    except KeyboardInterrupt:
        raise InputError(
            f"stopped; {name} is not attached, /attach {name} goes on with it"
        ) from None
    finally:
        chat.end_progress()
    if isinstance(found, Document):
        from ...apps.documents.result import page_notes

        for line in [*page_notes([found]), *document_lines([found])]:
            chat.screen.note(line)
        chat.keeper.save()
        return
    chat.attachments.append(found)
    tokens = len(chat.session.model.generator.tokenizer.encode(found["text"]))
    chat.screen.note(f"{found['name']} ({tokens:,} tokens) goes with your next message")


def _list(chat: "ChatTerminal") -> None:
    for file in chat.attachments:
        chat.screen.note(f"{file['name']}: goes with your next message")
    for line in document_lines(chat.keeper.documents.documents):
        chat.screen.note(line)
    if not _names(chat):
        chat.screen.note("nothing is attached; /attach FILE attaches a file")


def _detach(chat: "ChatTerminal", name: str) -> None:
    gone = [file["name"] for file in chat.attachments if name in ("", file["name"])]
    if name == "" or not gone:
        gone += chat.keeper.documents.detach(name or None)
    chat.attachments = [file for file in chat.attachments if file["name"] not in gone]
    chat.keeper.save()
    chat.screen.note(f"detached: {', '.join(gone)}" if gone else "nothing was attached")


def _names(chat: "ChatTerminal") -> list[str]:
    files = [file["name"] for file in chat.attachments]
    return [*files, *(document.path.name for document in chat.keeper.documents.documents)]


def _unquoted(name: str) -> str:
    return name.strip().strip("\"'")
