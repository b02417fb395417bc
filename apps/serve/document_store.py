"""Documents that clients have sent: held in a temporary directory until the server ends."""

import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.errors import InputError
from .errors import ApiError
from .work_queue import Check

if TYPE_CHECKING:
    from ...runtime.embedder import Embedder
    from ..documents.index import Index
    from ..documents.pages import Document
    from ..models import Stages

MAX_BYTES = 64 << 20  # of a document
MAX_PAGES = 3_000  # of a document
MAX_DOCUMENTS = 64  # held at once; the one that was not used for longest makes room
MAX_TOTAL = 512 << 20  # bytes of all
_LONGEST_NAME = 50  # characters, each of up to four bytes
_HEAD = 1024  # bytes within which a PDF says that it is one
_UNSAFE = re.compile(r"[^\w .,()+-]")

LoadEmbedder = Callable[["Stages"], "Embedder"]


@dataclass(frozen=True)
class Held:
    """A document that is there."""

    id: str
    path: Path
    size: int  # bytes
    document: "Document"  # without the text of its pages
    is_pdf: bool  # there are pictures of its pages


class DocumentStore:
    """The documents, and the index in which they are found; for any thread.

    The encoder is loaded with the first document. Without it, passages are found by words alone.
    """

    def __init__(self, load_embedder: LoadEmbedder) -> None:
        self._load = load_embedder
        self._lock = threading.RLock()
        self._held: dict[str, Held] = {}  # the last used one last
        self._place: Path | None = None
        self._index: Index | None = None
        self.embedder: Embedder | None = None
        self.without_embedder = ""  # why there is none

    def new_file(self, name: str) -> Path:
        """Where the bytes of a document called `name` go; a directory of its own, to be added."""
        with self._lock:
            if self._place is None:
                self._place = Path(tempfile.mkdtemp(prefix="pippin-documents-"))
            folder = self._place / secrets.token_hex(12)
            folder.mkdir()
        return folder / safe_name(name)

    def add(self, path: Path, check: Check) -> tuple[Held, list[str]]:
        """Read and index what was written to `path`; with lines for what the user should know.

        Raises InputError for a file that cannot be read, and what `check` raises.
        """
        from ..documents.read import read_document
        from ..documents.result import page_notes

        def progress(done: int, total: int) -> None:
            check()
            if total > MAX_PAGES:
                raise InputError(
                    f"{path.name} has {total:,} pages, at most {MAX_PAGES:,} are taken; split it"
                )

        document = read_document(path, progress=progress)
        index = self._opened(check)
        index.put(document)
        index.embed(lambda done, total: check(), [document.sha256])
        warnings = page_notes([document])
        if self.without_embedder:
            warnings.append(self.without_embedder)
        slim = tuple(replace(page, text="", headings=()) for page in document.pages)
        with path.open("rb") as file:
            is_pdf = b"%PDF-" in file.read(_HEAD)
        held = Held(
            path.parent.name,
            path,
            path.stat().st_size,
            replace(document, path=path, pages=slim),
            is_pdf,
        )
        check()
        with self._lock:
            self._held[held.id] = held
            self._make_room()
        return held, warnings

    def get(self, id: str) -> Held:
        """Raises ApiError (404) for a document that is not there, or not any more."""
        with self._lock:
            held = self._held.pop(id, None)
            if held is not None:
                self._held[id] = held
                return held
        raise ApiError(
            404,
            f"there is no document {id!r:.40} here any more: documents are kept until the server "
            "ends or newer ones need the room; attach it again",
            param="documents",
            code="document_not_found",
        )

    def index(self) -> "Index":
        """The index of all documents; there is one once a document is held."""
        with self._lock:
            assert self._index is not None
            return self._index

    def text(self, held: Held) -> "Document":
        """The document with its text."""
        document = self.index().document(held.document.sha256)
        if document is None:
            raise ApiError(500, f"the index has lost {held.path.name}")
        return replace(document, path=held.path)

    def remove(self, id: str) -> None:
        """Let a document go. Raises ApiError (404)."""
        with self._lock:
            self._drop(self.get(id))

    def close(self) -> None:
        """Delete everything."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None
            self._held.clear()
            if self._place is not None:
                shutil.rmtree(self._place, ignore_errors=True)
                self._place = None

    def _opened(self, check: Check) -> "Index":
        with self._lock:
            if self._index is not None:
                return self._index
            place = self._place
        from ..documents.index import open_index

        if not self.without_embedder:
            try:
                self.embedder = self._load(lambda title, unit: lambda done, total: check())
            except InputError as error:
                self.without_embedder = f"passages are found by words alone: {error}"
        with self._lock:
            self._index = open_index(place, self.embedder)
            return self._index

    def _make_room(self) -> None:
        while len(self._held) > MAX_DOCUMENTS or self._bytes > MAX_TOTAL:
            self._drop(next(iter(self._held.values())))

    @property
    def _bytes(self) -> int:
        return sum(held.size for held in self._held.values())

    def _drop(self, held: Held) -> None:
        del self._held[held.id]
        sha256 = held.document.sha256
        if self._index is not None and all(
            other.document.sha256 != sha256 for other in self._held.values()
        ):
            self._index.remove(sha256)
        discard(held.path)


def discard(path: Path) -> None:
    """Delete a document's file and directory, which may be gone already."""
    with suppress(OSError):
        shutil.rmtree(path.parent)


def safe_name(name: str) -> str:
    """A client's name for a file as a label: no path, nothing hidden, not too long."""
    last = name.replace("\\", "/").rpartition("/")[2]
    stem, dot, suffix = _UNSAFE.sub("_", last).strip(" .").rpartition(".")
    if not dot:
        stem, suffix = suffix, ""
    kept = stem[: _LONGEST_NAME - len(suffix[:10])].strip(" .") or "document"
    return f"{kept}.{suffix[:10]}" if suffix else kept


def names_of(held: Sequence[Held]) -> list["Document"]:
    """The documents, each once, for `Names`."""
    return list({one.document.sha256: one.document for one in held}.values())
