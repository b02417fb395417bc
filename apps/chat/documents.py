"""Documents that are attached to a conversation: its messages are answered from their passages.

A document is in the index that `pippin ask` has. The passages that are found for a message go with
it as attachments that also say where they are from; they are sent with that message alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...mlx_model.checkpoints.files import file_sha256
from ...runtime.errors import InputError
from ..documents.pages import Document
from ..documents.passages import Passage
from ..documents.user_file import existing
from ..models import Stages
from .attachments import attachment, read_with_text
from .messages import is_passage

if TYPE_CHECKING:  # what most conversations do without is loaded where it is used
    from ...runtime.embedder import Embedder
    from ..documents.index import Index
    from ..documents.reader import Sentence
    from ..documents.result import Names

TOP = 5  # passages of a message, at most


@dataclass(frozen=True)
class LookUp:
    """What was found for one message."""

    passages: tuple[Passage, ...]  # best first; as many as have room
    attachments: tuple[Mapping[str, Any], ...]  # they, as they go with the message
    searched: str  # the pages or sections that the message names; "" where it names none
    missing: str  # why there are no passages; "" where there are some


class AttachedDocuments:
    """The documents of one conversation, in the order in which they were attached."""

    def __init__(self, load_embedder: Callable[[], "Embedder"]) -> None:
        """The embedder is loaded when it is needed first."""
        self._documents: dict[str, Document] = {}  # by sha256
        self._embedder = _Lazy(load_embedder)
        self._opened: Index | None = None

    def __bool__(self) -> bool:
        return bool(self._documents)

    @property
    def documents(self) -> tuple[Document, ...]:
        """As they were read."""
        return tuple(self._documents.values())

    @property
    def names(self) -> "Names":
        """What passages are called."""
        from ..documents.result import Names

        return Names(self.documents)

    def saved(self) -> list[dict[str, str]]:
        """What a saved conversation has of them."""
        return [{"path": str(d.path), "sha256": sha256} for sha256, d in self._documents.items()]

    def restore(
        self, saved: Iterable[Mapping[str, str]], stages: Stages | None = None
    ) -> list[str]:
        """Attach what `saved` gave, and nothing else; a line for each file that cannot be."""
        self.detach()
        notes = []
        for path, sha256 in ((Path(one["path"]), one["sha256"]) for one in saved):
            try:
                if not path.exists():
                    raise InputError("there is no such file any more")
                if file_sha256(path) != sha256:
                    raise InputError("the file has changed; /attach takes it as it is now")
                self._add(path, stages)
            except (InputError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                notes.append(f"{path} is not attached any more: {reason}")
        return notes

    def attach(
        self, name: str, fits: Callable[[str], bool], stages: Stages | None = None
    ) -> dict[str, str] | Document:
        """Attach the file `name`, unless its text `fits` into a message.

        Its attachment {"name", "text"} if it does, the `Document` if not. Raises InputError for a
        file that cannot be read or has no text. What was indexed stays so when interrupted.
        """
        path = existing(name)
        if (document := self._indexed(path)) is None:
            document = read_with_text(path, stages)
        if document.sha256 in self._documents:
            raise InputError(f"{path.name} is attached already; /attach lists what is")
        file = attachment(document)
        return file if fits(file["text"]) else self._add(path, stages, document)

    def detach(self, name: str | None = None) -> list[str]:
        """Detach the document called `name`, or all; their names. Raises InputError: no such."""
        gone = [d for d in self.documents if name in (None, d.path.name, str(d.path))]
        if not gone and name is not None:
            known = ", ".join(d.path.name for d in self.documents) or "none"
            raise InputError(f"no document {name} is attached; attached: {known}")
        for document in gone:
            del self._documents[document.sha256]
        return [document.path.name for document in gone]

    def look_up(self, message: str, fits: Callable[[str], bool]) -> LookUp:
        """The best passages for a message, as many of the first as `fits` takes together.

        Only the message itself is searched for, not what was said before.
        """
        from ..documents.answer import missing, weigh

        found = self._index.search(message, TOP, documents=list(self._documents))
        searched = found.filter.statement if found.filter and not found.filter.empty else ""
        if reason := missing(found.hits, found.filter, weigh(message, found.hits)):
            return LookUp((), (), searched, reason)
        names, passages = self.names, [hit.passage for hit in found.hits]
        files = [_file(names, passage) for passage in passages]
        while files and not fits("\n\n".join(file["text"] for file in files)):
            files.pop()
        if not files:
            return LookUp((), (), searched, "the passages are too long for the context")
        return LookUp(tuple(passages[: len(files)]), tuple(files), searched, "")

    def check(self, reply: str, passages: Sequence[Passage]) -> "list[Sentence]":
        """The sentences of a reply, each with the sentence of the passages that bears it out."""
        from ..documents.marks import Sources
        from ..documents.reader import AnswerReader, Sentence

        pages = [self._documents[p.document].pages[p.page - 1].text for p in passages]
        reader = AnswerReader(Sources(passages, pages, self._embedder))
        return [one for one in reader.feed(reply, 0, last=True) if isinstance(one, Sentence)]

    def close(self) -> None:
        """Let go of the index."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _index(self) -> "Index":
        if self._opened is None:
            from ..documents.index import open_index

            self._opened = open_index(None, self._embedder)
        return self._opened

    def _indexed(self, path: Path) -> Document | None:
        """A PDF that is in the index, with text; reading others takes no time."""
        from ..documents.result import has_text

        if path.suffix.lower() != ".pdf":
            return None
        document = self._index.document(file_sha256(path))
        return document if document is not None and has_text(document) else None

    def _add(self, path: Path, stages: Stages | None, document: Document | None = None) -> Document:
        if document is not None and self._index.document(document.sha256) is None:
            self._index.put(document)
        (sha256,) = self._index.add([path], stages)
        # the same content may be in the index under another name
        added = replace(self._index.document(sha256), path=path)
        self._documents[sha256] = added
        return added


class _Lazy:
    """An embedder that is loaded with the first text; what an index and `Sources` ask of one."""

    def __init__(self, load: Callable[[], "Embedder"]) -> None:
        self._load = load
        self._loaded: Embedder | None = None

    def __getattr__(self, name: str) -> Any:
        if self._loaded is None:
            self._loaded = self._load()
        return getattr(self._loaded, name)


def own_files(files: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a message's attachments those that the user attached to it."""
    return [file for file in files if not is_passage(file)]


def _file(names: "Names", passage: Passage) -> dict[str, Any]:
    mark = names.mark(passage).strip("[]")
    paged = mark.startswith("p. ")
    return {
        "name": f"{names.file(passage)} p. {passage.label}" if paged else mark,
        "text": passage.text,
        "document": passage.document,
        "page": passage.page,
    }
