"""What each command of the chat does; `chat` is the ChatTerminal that it was typed into."""

import re
from secrets import randbits
from typing import TYPE_CHECKING, Any

from ...apps.chat import settings
from ...apps.chat.documents import own_files
from ...apps.chat.keeper import Resumed, lasting_name
from ...apps.reply import sampling_params
from ...apps.structured import json_object, read_schema
from ...runtime.errors import InputError
from ..console import format_bytes, format_stats
from . import attach, clipboard
from .reply_view import ReplyView
from .screen import short_name
from .slash import Command
from .why import why

if TYPE_CHECKING:
    from .loop import ChatTerminal

_LISTED = 20  # conversations of `/list`
_CODE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)(?:\n)?^[ \t]*\1[`~]*[ \t]*$", re.M | re.S)
_KEYS = (
    '""" begins and ends a block of lines; Alt-Enter is a line break',
    "Ctrl-X Ctrl-E opens your editor; Ctrl-R searches what was typed before; Tab completes",
    "Ctrl-C stops a reply, then leaves; Ctrl-D leaves",
    "// begins a message with /; paths need no second one",
)


def _help(chat: "ChatTerminal", argument: str) -> None:
    rows = [(f"/{c.name} {c.arguments}".rstrip(), c.help) for c in COMMANDS.values()]
    width = max(len(usage) for usage, _ in rows)
    for usage, text in rows:
        if argument.lstrip("/") in usage:
            chat.screen.note(f"{usage.ljust(width)}  {text}", "")
    for line in () if argument else _KEYS:
        chat.screen.note(line)


def _system(chat: "ChatTerminal", argument: str) -> None:
    if argument:
        chat.session.system = None if argument == "none" else argument
        chat.keeper.save()
    chat.screen.note(f"system prompt: {chat.session.system or 'none'}")


def _set(chat: "ChatTerminal", argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        for known in settings.NAMES:
            chat.screen.note(_describe(chat, known))
        return
    if value.strip():
        _change(chat, name, settings.parse(name, value.strip()))
        chat.keeper.save()
    elif name not in settings.NAMES:
        settings.parse(name, "")  # which says what there is
    chat.screen.note(_describe(chat, name))


def _change(chat: "ChatTerminal", name: str, value: Any) -> None:
    if name in settings.CHOICES:
        chat.keeper.settings[name] = value or settings.CHOICES[name][0]
    else:
        chat.session.set_sampling(name, value)


def _describe(chat: "ChatTerminal", name: str) -> str:
    if name in settings.CHOICES:
        return f"{name} {chat.keeper.settings[name]}  ({' or '.join(settings.CHOICES[name])})"
    session = chat.session
    params = sampling_params(session.model.generation_config, session.sampling)
    given = "" if name in session.sampling else "  (default)"
    return f"{name} {settings.spell(getattr(params, name))}{given}"


def _stats(chat: "ChatTerminal", _: str) -> None:
    session, engine = chat.session, chat.session.model.generator.engine
    used = session.used_tokens()
    if chat.last_stats is not None:
        chat.screen.note(f"last: {format_stats(chat.last_stats)}")
    chat.screen.note(
        f"context: {used:,} of {session.context:,} tokens; {chat.reply_tokens:,} generated so far"
    )
    cached = len(session.cache.tokens)
    chat.screen.note(
        f"memory: weights {format_bytes(engine.info.weight_bytes)}, KV cache of {cached:,} tokens "
        f"{format_bytes(engine.memory_needed(cached))}"
    )


def _save(chat: "ChatTerminal", argument: str) -> None:
    if argument:
        chat.keeper.rename(argument)
    elif chat.keeper.store is None:
        raise InputError("this chat keeps nothing; /save NAME saves it all the same")
    else:
        chat.keeper.save()
    if chat.keeper.name is None:
        raise InputError("nothing has been said yet, so there is nothing to save")
    chat.keeper.save_cache()
    chat.screen.note(f"saved as {chat.keeper.store.path(chat.keeper.name)}")


def _load(chat: "ChatTerminal", argument: str) -> None:
    store = chat.keeper.store_to_read
    names = [name for name in store.names() if name != chat.keeper.name]
    if not argument and not names:
        raise InputError("there is no other saved chat")
    name = store.find(argument or names[0])
    store.read(name)  # before this one is left
    chat.keeper.save()
    resume(chat, chat.keeper.load(name))


def resume(chat: "ChatTerminal", resumed: Resumed) -> None:
    """Show where the conversation was left."""
    chat.attachments, chat.editing, chat.last_stats = [], False, None
    messages, saved = chat.session.messages, resumed.saved
    chat.screen.note(f"{resumed.name}: {len(messages)} messages, of which the last are")
    for message in messages[-2:]:
        if message["role"] == "assistant":
            view = ReplyView(chat.screen, chat.keeper.settings | {"think": "fold"})
            view.answer(message["content"])
            view.finish()
        else:
            chat.screen.note(f"> {message['content']}", "bold")
    if saved.loading["name"] != chat.keeper.loading["name"]:
        chat.screen.note(f"it was with the model {saved.loading['name']}")
    if resumed.cache_refusal is not None:
        chat.screen.note(f"it is read anew: {resumed.cache_refusal}", "yellow")
    attach.restore(chat, saved.documents)
    if resumed.unanswered is not None:
        chat.attachments = own_files(resumed.unanswered.get("attachments", ()))
        if chat.reader.can_prefill:
            chat.prefill = resumed.unanswered["content"]


def _list(chat: "ChatTerminal", _: str) -> None:
    store = chat.keeper.store_to_read
    names = store.names()
    if not names:
        raise InputError(f"there is no saved chat in {store.folder}")
    listed = store.list(_LISTED)
    width = max(len(row.name) for row in listed)
    for row in listed:
        here = "*" if row.name == chat.keeper.name else " "
        chat.screen.note(
            f"{here} {row.name.ljust(width)}  {row.changed:%Y-%m-%d %H:%M}  {row.turns:>3} turns  "
            f"{format_bytes(row.bytes):>9}  {short_name(row.model)}  {row.title}",
            "",
        )
    if len(names) > _LISTED:
        chat.screen.note(f"and {len(names) - _LISTED} older ones in {store.folder}")


def _clear(chat: "ChatTerminal", _: str) -> None:
    kept = chat.keeper.name
    chat.keeper.save()
    chat.session.clear()
    chat.keeper.start_anew()
    chat.attachments = []
    chat.keeper.documents.detach()
    chat.screen.note(f"begun anew; /load {kept} goes back" if kept else "begun anew")


def _undo(chat: "ChatTerminal", _: str) -> None:
    message = chat.session.undo()
    chat.keeper.save()
    chat.screen.note(f"taken back: {' '.join(message['content'].split())[:60]}")


def _regen(chat: "ChatTerminal", _: str) -> None:
    session = chat.session
    params = sampling_params(session.model.generation_config, session.sampling)
    message, stopped = session.last_message, session.messages[-1].get("finish_reason")
    if params.temperature == 0 and not stopped:
        chat.screen.note("(at temperature 0 each reply is the same; /set temperature 0.7)")
    chat.answer_anew(message["content"], seed=randbits(32))


def _edit(chat: "ChatTerminal", argument: str) -> None:
    message = chat.session.last_message
    if argument:
        chat.answer_anew(argument)
    elif chat.reader.can_prefill:
        chat.editing, chat.prefill = True, message["content"]
    else:
        raise InputError("this terminal cannot edit; give the new text: /edit TEXT")


def _copy(chat: "ChatTerminal", argument: str) -> None:
    text = chat.session.last_reply
    if text is None:
        raise InputError("there is no reply yet")
    if argument == "code":
        blocks = _CODE.findall(text)
        if not blocks:
            raise InputError("the last reply has no code block; /copy takes all of it")
        text = blocks[-1][1]
    elif argument:
        raise InputError(f"/copy takes nothing or code, not {argument!r}")
    chat.screen.note(clipboard.copy(text, chat.screen.send if chat.screen.is_styled else None))


def _json(chat: "ChatTerminal", argument: str) -> None:
    if argument == "off":
        chat.session.hold_to(None)
    elif argument:
        chat.session.hold_to(json_object() if argument == "object" else read_schema(argument))
    grammar = chat.session.grammar
    chat.screen.note(f"replies are held to a {grammar.kind}" if grammar else "replies are free")


def _model(chat: "ChatTerminal", argument: str) -> None:
    if argument:
        try:
            chat.session.use(chat.load_model(argument))
        except KeyboardInterrupt:
            raise InputError("stopped; the model stays the one it was") from None
        chat.keeper.loading |= {"name": lasting_name(argument), "adapter": None, "draft": None}
        chat.keeper.save()
    info = chat.session.model.generator.engine.info
    chat.screen.note(f"model: {short_name(info.model)} · {info.backend} · context {info.context:,}")


def _quit(chat: "ChatTerminal", _: str) -> None:
    chat.leaving = True


_ALL = (
    Command("help", "", "this list", _help),
    Command("system", "[TEXT]", "show or set the system prompt; none takes it away", _system),
    Command("set", "[NAME [VALUE]]", "show or change a setting; default takes it back", _set),
    Command("stats", "", "speed, what the cache gave, context and memory", _stats),
    Command("save", "[NAME]", "save the conversation, under a name", _save),
    Command("load", "[NAME]", "go on with another saved conversation", _load),
    Command("list", "", "the saved conversations", _list),
    Command("clear", "", "begin a new conversation", _clear),
    Command("undo", "", "take back the last exchange", _undo),
    Command("regen", "", "answer the last message again, with another seed", _regen),
    Command("edit", "[TEXT]", "change your last message and answer it anew", _edit),
    Command("copy", "[code]", "copy the last reply, or its last code block", _copy),
    Command(
        "attach",
        "[FILE|off [NAME]]",
        "send a file with the next message, or answer from it",
        attach.attach,
    ),
    Command(
        "json",
        "[FILE|SCHEMA]",
        "hold replies to a schema, to any JSON object, or off",
        _json,
    ),
    Command("why", "[WORD|N]", "what the last reply attended to for a word of it", why),
    Command("model", "[NAME]", "go on with another model", _model),
    Command("quit", "", "leave; so does Ctrl-D", _quit),
)
COMMANDS = {command.name: command for command in _ALL}
