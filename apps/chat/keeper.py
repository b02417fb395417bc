"""Keeps a running conversation on disk, so that whatever ends the process ends no conversation."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...mlx_model.checkpoints.aliases import ALIASES
from ...runtime.errors import InputError
from ...runtime.prompt_cache import PromptCache
from ..embedders import load_embedder
from ..models import is_exported
from .documents import AttachedDocuments
from .messages import Message, last_turn
from .saved import ChatStore, SavedChat
from .session import ChatSession
from .settings import CHOICES


class Keeper:
    """The file of one conversation.

    `loading` are the arguments of `load_model` that the conversation's model was loaded with.
    Two processes that go on with one conversation do not overwrite each other's turns: the one
    that comes second goes on in a file of its own.
    """

    def __init__(
        self,
        session: ChatSession,
        loading: Mapping[str, Any],
        store: ChatStore | None,
        documents: AttachedDocuments | None = None,
    ) -> None:
        """Without a `store` nothing is kept unless `rename` asks for it."""
        if documents is None:
            documents = AttachedDocuments(lambda: load_embedder("minilm"))
        self.documents = documents
        self.session, self.store = session, store
        self.loading = dict(loading)
        self.settings = {name: values[0] for name, values in CHOICES.items()}
        self.name: str | None = None  # None until something has been said
        self._created = ""
        self._stamp: tuple[int, int] | None = None  # of the file as it was read or written last

    @property
    def store_to_read(self) -> ChatStore:
        """Where saved conversations are, whether this one is kept or not."""
        return self.store or ChatStore()

    def save(self) -> None:
        """Write the conversation as it stands, unless there is nothing to keep.

        Raises InputError when it cannot be written.
        """
        empty = last_turn(self.session.transcript) is None
        if self.store is None or (self.name is None and empty):
            return
        if self.name is None or (self._stamp and self._stamp_of(self.name) != self._stamp):
            self.name = self.store.new_name()
        self.store.write(self.name, self._snapshot())
        self._stamp = self._stamp_of(self.name)

    def save_cache(self) -> None:
        """Write the KV cache beside the conversation, or remove one that nobody asked for.

        Raises InputError when it cannot be written.
        """
        if self.store is None or self.name is None:
            return
        path = self.store.cache_path(self.name)
        try:
            if self.settings["keep_cache"] == "off":
                path.unlink(missing_ok=True)
            elif self.session.cache.tokens:
                self.session.cache.save(path)
                path.chmod(0o600)
        except OSError as error:
            raise InputError(
                f"the KV cache cannot be kept in {path}: {error.strerror or error}"
            ) from error

    def forget_empty(self) -> None:
        """Delete the file of a conversation of which every turn was taken back."""
        if self.name is not None and last_turn(self.session.messages) is None:
            self.store.delete(self.name)
            self.start_anew()

    def rename(self, name: str) -> None:
        """Call the conversation `name` from now on. Raises InputError as `ChatStore.rename`."""
        if last_turn(self.session.messages) is None:
            raise InputError("nothing has been said yet, so there is nothing to save")
        self.store = self.store_to_read
        self.save()
        self.store.rename(self.name, name)
        self.name, self._stamp = name, self._stamp_of(name)

    def load(self, name: str, sampling: Mapping[str, Any] | None = None) -> "Resumed":
        """Go on with the saved conversation `name`: its messages, settings and KV cache.

        `sampling` goes before what was saved; the documents are up to the caller, who can show how
        far they are. Raises InputError when the file is damaged; nothing has changed then.
        """
        store = self.store_to_read
        saved = store.read(name)
        self.session.hold_to(saved.grammar)
        self.session.sample_as(saved.sampling | dict(sampling or {}))
        if self.store is not None:
            self.name, self._created, self._stamp = name, saved.created, self._stamp_of(name)
        self.settings |= saved.settings
        messages, unanswered = saved.messages, None
        if messages and messages[-1]["role"] == "user":
            *messages, unanswered = messages
        self.session.messages, self.session.dropped = messages, min(saved.dropped, len(messages))
        return Resumed(name, saved, unanswered, self._load_cache(store.cache_path(name)))

    def start_anew(self) -> None:
        """What is said from now on is another conversation."""
        self.name, self._stamp, self._created = None, None, ""

    def _load_cache(self, path: Path) -> str | None:
        """Why the saved KV cache is of no use; None when it is, or when there is none."""
        engine = self.session.model.generator.engine
        self.session.cache = PromptCache(engine)
        if not path.exists():
            return None
        try:
            self.session.cache = PromptCache.load(engine, path)
        except InputError as error:
            return str(error)
        return None

    def _snapshot(self) -> SavedChat:
        return SavedChat(
            messages=self.session.transcript,
            loading={k: _plain(v) for k, v in self.loading.items() if v is not None},
            sampling=self.session.sampling,
            settings=self.settings,
            dropped=self.session.dropped,
            grammar=self.session.grammar,
            documents=self.documents.saved(),
            created=self._created,
        )

    def _stamp_of(self, name: str) -> tuple[int, int] | None:
        with suppress(OSError):
            info = os.stat(self.store.path(name))
            return info.st_mtime_ns, info.st_size
        return None


class Resumed:
    """What came back with a saved conversation."""

    def __init__(
        self, name: str, saved: SavedChat, unanswered: Message | None, cache_refusal: str | None
    ) -> None:
        self.name, self.saved = name, saved
        self.unanswered = unanswered  # a user message whose answer never began
        self.cache_refusal = cache_refusal  # why the KV cache beside it is of no use


def lasting_name(name: str) -> str:
    """The name of a model as it is good in any directory: a path is made absolute."""
    path = Path(name).expanduser()
    is_path = is_exported(path) or (path.exists() and name not in ALIASES)
    return str(path.absolute()) if is_path else name


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)
