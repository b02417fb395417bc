"""Conversations on disk: one plain JSON file each, and a KV cache beside it when asked.

<folder>/                   chats/ in PIPPIN_HOME, or in the platform's data directory
  2026-01-31_09-15-00.json  a conversation; /save NAME makes it NAME.json
  2026-01-31_09-15-00.kv    its KV cache
  history                   what has been typed
"""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import platformdirs

from ...runtime.errors import InputError
from ...runtime.sampling import SamplingParams
from ..structured import Grammar, from_saved
from .messages import Message, check_messages, title
from .settings import check_choices

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass
class SavedChat:
    """What a file holds."""

    messages: list[Message]
    loading: dict[str, Any]  # arguments of `load_model`: the model's name and how it was loaded
    sampling: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # those of `settings.CHOICES`
    dropped: int = 0  # messages at the beginning that the model no longer gets
    grammar: Grammar | None = None  # what replies are held to
    documents: list[dict[str, str]] = field(default_factory=list)  # attached: path and sha256
    created: str = ""  # ISO 8601, UTC


@dataclass(frozen=True)
class Listed:
    """A line of `/list`."""

    name: str
    title: str
    model: str
    turns: int
    changed: datetime
    bytes: int  # the KV cache included


def default_folder() -> Path:
    """Where conversations are kept."""
    home = os.environ.get("PIPPIN_HOME") or platformdirs.user_data_dir("pippin")
    return Path(home).expanduser() / "chats"


class ChatStore:
    """The conversations of one folder, readable by the user alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    @property
    def history_file(self) -> Path:
        """What has been typed, for the line editor."""
        return self.folder / "history"

    def make_folder(self) -> None:
        """Make the folder unless it is there. Raises InputError when that cannot be done."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unwritable(error) from error

    def names(self) -> list[str]:
        """The conversations, the one changed last first."""
        found = []
        with suppress(OSError):
            found = [(f.stat().st_mtime_ns, f.stem) for f in self.folder.glob("[!.]*.json")]
        return [name for _, name in sorted(found, reverse=True)]

    def list(self, count: int) -> list[Listed]:
        """The first `count` of `names`; a damaged file is listed with what is wrong as title."""
        return [self._listed(name) for name in self.names()[:count]]

    def find(self, name: str | None) -> str:
        """The conversation that `name` or the beginning of one stands for; the last when None.

        Raises InputError when there is none, or several begin like that.
        """
        names = self.names()
        if not names:
            raise InputError(f"there is no saved chat in {self.folder}; `pippin chat` begins one")
        if name is None or name in names:
            return name or names[0]
        begin = [known for known in names if known.startswith(name)]
        if len(begin) == 1:
            return begin[0]
        if begin:
            raise InputError(f"{len(begin)} saved chats begin with {name}: {', '.join(begin[:5])}")
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the last one is {names[0]}"
        raise InputError(f"there is no saved chat {name!r}; {hint}")

    def new_name(self) -> str:
        """A name for a conversation that begins now."""
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        name, number = stamp, 2
        while self.path(name).exists():
            name, number = f"{stamp}-{number}", number + 1
        return name

    def path(self, name: str) -> Path:
        """The file of a conversation."""
        return self.folder / f"{name}.json"

    def cache_path(self, name: str) -> Path:
        """The file of its KV cache, whether there is one or not."""
        return self.folder / f"{name}.kv"

    def read(self, name: str) -> SavedChat:
        """The conversation `name`. Raises InputError when its file is damaged."""
        path = self.path(name)
        try:
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a saved chat: {error}") from None
        return _parse(document, path)

    def write(self, name: str, chat: SavedChat) -> None:
        """Write the conversation, atomically. Raises InputError when that cannot be done."""
        document = {"format": _FORMAT, "changed": _now(), **asdict(chat)}
        document["created"] = chat.created or document["changed"]
        if bias := chat.sampling.get("logit_bias"):  # JSON has neither numbers as keys nor -inf
            document["sampling"]["logit_bias"] = {str(t): repr(b) for t, b in bias.items()}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        self.make_folder()
        self._atomically(self.path(name), lambda file: file.write_text(text, "utf-8"))

    def rename(self, old: str, new: str) -> None:
        """Give a conversation and its KV cache another name.

        Raises InputError for a name that no file should have, or that another one has.
        """
        if not _NAME.fullmatch(new) or new.endswith((".json", ".kv")):
            raise InputError(
                f"{new!r} is no name for a chat; use letters, digits, '.', '_' and '-', at most 64"
            )
        if self.path(new).exists() and new != old:
            raise InputError(f"there is a chat {new!r} already; choose another name")
        try:
            for old_file, new_file in (
                (self.path(old), self.path(new)),
                (self.cache_path(old), self.cache_path(new)),
            ):
                if old_file.exists():
                    old_file.replace(new_file)
        except OSError as error:
            raise self._unwritable(error) from error

    def delete(self, name: str) -> None:
        """Delete a conversation and its KV cache, as far as they are there."""
        with suppress(OSError):
            self.path(name).unlink(missing_ok=True)
            self.cache_path(name).unlink(missing_ok=True)

    def _atomically(self, path: Path, write: Callable[[Path], Any]) -> None:
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # Made before anything is in it, so that nobody else ever can read what was said.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            write(partial)
            partial.replace(path)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            partial.unlink(missing_ok=True)

    def _listed(self, name: str) -> Listed:
        path, cache = self.path(name), self.cache_path(name)
        info = path.stat()
        size = info.st_size + (cache.stat().st_size if cache.exists() else 0)
        try:
            chat = self.read(name)
        except InputError as error:
            text, model, turns = str(error), "?", 0
        else:
            text, model = title(chat.messages), str(chat.loading["name"])
            turns = sum(message["role"] == "user" for message in chat.messages)
        changed = datetime.fromtimestamp(info.st_mtime)
        return Listed(name, text, model, turns, changed, size)

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"chats cannot be kept in {self.folder}: {error.strerror or error}")


def _parse(document: Any, path: Path) -> SavedChat:
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(f"{path} is no saved chat of format {_FORMAT}; delete it or move it away")
    fields = {name: document.get(name, {}) for name in ("loading", "sampling", "settings")}
    if not all(isinstance(value, dict) for value in fields.values()):
        raise InputError(f"{path} is damaged: {', '.join(fields)} must be objects")
    if not isinstance(fields["loading"].get("name"), str):
        raise InputError(f"{path} does not say which model it was with; set loading.name in it")
    fields["settings"] = check_choices(fields["settings"], str(path))
    fields["sampling"] = _sampling(fields["sampling"], path)
    messages = check_messages(document.get("messages"), str(path))
    dropped = document.get("dropped", 0)
    if not isinstance(dropped, int) or not 0 <= dropped <= len(messages):
        raise InputError(f"{path} has dropped {dropped!r}; it must be 0 to {len(messages)}")
    return SavedChat(
        messages,
        dropped=dropped,
        grammar=_grammar(document.get("grammar"), path),
        documents=_documents(document.get("documents", []), path),
        created=str(document.get("created", "")),
        **fields,
    )


def _grammar(fields: Any, path: Path) -> Grammar | None:
    try:
        return None if fields is None else from_saved(fields)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _documents(values: Any, path: Path) -> list[dict[str, str]]:
    names = ("path", "sha256")
    if not isinstance(values, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(name), str) for name in names)
        for one in values
    ):
        raise InputError(f"{path} is damaged: documents must be objects with path and sha256")
    return values


def _sampling(values: dict[str, Any], path: Path) -> dict[str, Any]:
    known = {f.name for f in dataclass_fields(SamplingParams)}
    if unknown := values.keys() - known:
        raise InputError(f"{path} has the sampling value {min(unknown)!r}, which there is not")
    try:
        bias = {int(t): float(b) for t, b in dict(values.get("logit_bias", {})).items()}
    except (TypeError, ValueError):
        raise InputError(f"{path} has a logit_bias that is no object of numbers") from None
    return values | ({"logit_bias": bias} if bias else {})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
