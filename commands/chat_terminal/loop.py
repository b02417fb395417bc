"""The conversation at a terminal: what is typed in, replies and notes out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from difflib import get_close_matches
from time import monotonic
from typing import Any

from ...apps.chat import ReplyChunk
from ...apps.chat.documents import LookUp, own_files
from ...apps.chat.keeper import Keeper
from ...apps.models import Model, StageProgress
from ...runtime.errors import ContextError, InputError, PippinError
from ...runtime.generator import Stats
from ..console import Progress, format_stats
from ..terminal import stop_on_interrupt
from . import slash
from .readers import Reader
from .reply_view import ReplyView, quiet_keyboard
from .screen import Screen, short_name
from .sources import found_lines, source_lines

_SAVE_EVERY = 2.0  # seconds, while a reply comes
_NEARLY_FULL = 0.9  # of the context, from where the toolbar warns
_NAMED_DOCUMENTS = 2  # in the toolbar; of more the number is shown
_WARNING = "yellow"


class ChatTerminal:
    """One run of `pippin chat`. Commands (`actions.py`) use its public methods and fields."""

    def __init__(
        self,
        keeper: Keeper,
        screen: Screen,
        progress: Progress,
        load_model: Callable[[str], Model],
        *,
        show_stats: bool = False,
    ) -> None:
        """`load_model` is what `/model` calls with a name."""
        from .actions import COMMANDS

        self.keeper, self.session, self.screen = keeper, keeper.session, screen
        self.load_model, self.commands = load_model, COMMANDS
        self.attachments: list[Mapping[str, Any]] = []  # go with the next message
        self.prefill = ""  # what the next prompt begins with
        self.editing = False  # whether the next message takes the place of the last one
        self.last_stats: Stats | None = None
        self.reply_tokens = 0  # of all replies
        self.leaving = False
        self.reader: Reader
        self._progress, self._show_stats = progress, show_stats
        self._used = 0  # tokens, when the prompt was shown
        self._saved_at = 0.0
        self._keeps = True

    def run(self) -> None:
        """Talk until the user leaves. Raises KeyboardInterrupt when that is by Ctrl-C."""
        try:
            while not self.leaving:
                self._used = self.session.used_tokens()
                line = self._read()
                if line is None:
                    return
                if line.strip():
                    self.take(line)
        finally:
            self._close()

    def take(self, line: str) -> None:
        """Do what `line` says: a command or a message. What it cannot do is noted."""
        try:
            found = slash.parse(line, self.commands)
            if found is not None:
                command, argument = found
                command.run(self, argument)
                return
        except PippinError as error:
            self.screen.note(str(error), _WARNING)
            return
        text = slash.message(line)
        if not text.strip():
            return
        if self.editing:
            self.answer_anew(text)
        else:
            self.say(text)

    def answer_anew(self, text: str, seed: int | None = None) -> None:
        """Let `text` take the place of the last message, and answer it.

        The exchange as it was comes back where no word of a new one was said.
        """
        self.editing = False
        before, dropped = self.session.messages, self.session.dropped
        files = own_files(self.session.undo().get("attachments", ()))
        self.attachments = [*files, *self.attachments]
        try:
            self.say(text, seed)
        finally:
            if len(self.session.messages) < len(before):
                self.session.messages, self.session.dropped = before, dropped
                self.attachments = []
                self.screen.note("(the earlier exchange stays)")
                self._save()

    def say(self, text: str, seed: int | None = None) -> None:
        """Say `text` to the model, and show its reply. What cannot be said is offered again."""
        before, found = self.session.messages, None
        try:
            found = self._look_up(text)
            files = [*self.attachments, *(found.attachments if found else ())]
            try:
                self._reply(text, files, seed)
            except ContextError as error:
                if not self._make_room(error, text, files):
                    return
                self._reply(text, files, seed)
        except PippinError as error:
            self._refuse(error, text)
            return
        if self.session.messages is not before:
            self.attachments = []
        elif self.reader.can_prefill:
            self.prefill = text
        self._save()
        if found is not None and found.passages and self.session.messages is not before:
            self._tell_sources(found)

    def stages(self, title: str, unit: str = "bytes") -> StageProgress:
        """Progress of a stage, as library calls take it; `end_progress` takes it away."""
        return self._progress.stage(title, unit)

    def end_progress(self) -> None:
        """Take the bar away."""
        self._progress.close()

    def toolbar(self) -> list[tuple[str, str]]:
        """The row below the prompt, as prompt_toolkit takes it."""
        info = self.session.model.generator.engine.info
        full = self._used >= _NEARLY_FULL * info.context
        parts = [short_name(info.model), info.backend, f"{self._used:,} of {info.context:,} tokens"]
        if full:
            parts.append("nearly full")
        parts += [f"+{file['name']}" for file in self.attachments]
        documents = self.keeper.documents.documents
        if len(documents) > _NAMED_DOCUMENTS:
            parts.append(f"from {len(documents)} documents")
        elif documents:
            parts.append(f"from {', '.join(d.path.name for d in documents)}")
        parts.append("/help")
        style = "class:bottom-toolbar.full" if full else ""
        return [(style, " · ".join(parts))]

    def names(self, command: str) -> Iterable[str]:
        """The words that a command takes, for completion."""
        if command == "model":
            from ..options import known_models

            return known_models()
        if command == "attach":
            from .attach import words

            return words(self)
        if command == "load" and self.keeper.store is not None:
            return self.keeper.store.names()
        return {"copy": ("code",), "system": ("none",), "json": ("object", "off")}.get(command, ())

    def _read(self) -> str | None:
        """What is typed next; None at the end of input."""
        prefill, self.prefill = self.prefill, ""
        prompt = "edit> " if self.editing else "> "
        try:
            return self.reader.read(prompt, prefill)
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not self.editing:
                raise
            self.editing = False
            self.screen.note("not changed")
            return ""
        except (UnicodeDecodeError, InputError) as error:
            self.screen.note(f"not understood: {error}", _WARNING)
            return ""

    def _look_up(self, text: str) -> LookUp | None:
        """What the documents have for a message; None without documents."""
        if not self.keeper.documents:
            return None
        try:
            found = self.keeper.documents.look_up(text, self.session.fits_share)
        except KeyboardInterrupt:
            raise InputError("stopped") from None
        finally:
            self.end_progress()  # the embedder may have been fetched
        for line in found_lines(found):
            self.screen.note(line)
        return found

    def _tell_sources(self, found: LookUp) -> None:
        with stop_on_interrupt():  # it takes no time that is worth stopping
            lines = source_lines(self.keeper.documents, found, self.session.last_reply)
        for line in lines:
            self.screen.note(line)

    def _reply(self, text: str, files: Sequence[Mapping[str, Any]], seed: int | None) -> None:
        stage = self._progress.stage("reading", "tokens")

        def reading(done: int, total: int) -> None:
            stage(done, total)
            self._save_now_and_then()

        view = ReplyView(self.screen, self.keeper.settings)
        last: ReplyChunk | None = None
        with stop_on_interrupt() as should_stop, quiet_keyboard():
            try:
                chunks = self.session.reply(
                    text,
                    attachments=files,
                    seed=seed,
                    progress=reading,
                    should_stop=should_stop,
                )
                with closing(chunks):
                    for last in chunks:
                        self._progress.close()
                        view.add(last)
                        self._save_now_and_then()
            finally:
                self._progress.close()
                if last is not None:
                    view.finish()
        self._tell_end(last)

    def _tell_end(self, last: ReplyChunk) -> None:
        stats = self.last_stats = last.stats
        self.reply_tokens += stats.reply_tokens
        if last.finish_reason == "cancelled":
            self.screen.note("(stopped)" if stats.reply_tokens else "(stopped; nothing was said)")
        elif last.finish_reason == "length":
            full = stats.prompt_tokens + stats.reply_tokens >= self.session.context
            self.screen.note(
                "(the context is full)" if full else "(cut at max_tokens; say: go on)", _WARNING
            )
        if self._show_stats:
            self.screen.note(format_stats(stats))

    def _make_room(
        self, error: ContextError, text: str, files: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether `text` fits now, since the oldest turns are dropped."""
        choice = self.keeper.settings["overflow"]
        try:
            if not self.session.messages[self.session.system is not None :]:
                raise error
            if choice == "ask":
                self.screen.note(str(error), _WARNING)
                choice = self._ask("drop the oldest turns, or stop here?", ("drop", "stop"))
            if choice == "stop":
                raise InputError("the context is full; /clear begins anew, /undo takes back a turn")
            gone = self.session.drop_oldest(text, files)
        except InputError as refusal:
            self._refuse(refusal, text)
            return False
        self.screen.note(f"(the model no longer sees the first {gone} messages of those it saw)")
        return True

    def _ask(self, question: str, choices: tuple[str, str]) -> str:
        """One of `choices`, by a letter or the word; the last one at Ctrl-C, Ctrl-D."""
        while True:
            try:
                answer = self.reader.read(f"{question} [{'/'.join(choices)}] ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                return choices[-1]
            if near := [choice for choice in choices if answer and choice.startswith(answer)]:
                return near[0]
            if near := get_close_matches(answer, choices, n=1):
                return near[0]

    def _refuse(self, error: PippinError, text: str) -> None:
        self.screen.note(f"not said: {error}", _WARNING)
        self.prefill = text if self.reader.can_prefill else ""

    def _save_now_and_then(self) -> None:
        if monotonic() - self._saved_at >= _SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        """Keep the conversation; where that fails it is said once, and the chat goes on."""
        if not self._keeps:
            return
        try:
            self.keeper.save()
        except InputError as error:
            self._keeps = False
            self.screen.note(f"{error}; this conversation is not kept", _WARNING)
        self._saved_at = monotonic()

    def _close(self) -> None:
        """Keep all that is to be kept, and say how to come back."""
        self._progress.close()
        with stop_on_interrupt():  # one more Ctrl-C must not keep it from being saved
            self._save()
        try:
            self.keeper.save_cache()
        except InputError as error:
            self.screen.note(str(error), _WARNING)
        self.keeper.forget_empty()
        self.keeper.documents.close()
        if self._keeps and self.keeper.name is not None and self.screen.is_terminal:
            self.screen.note(f"saved; pippin chat --resume {self.keeper.name}")
