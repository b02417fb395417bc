"""Documents made searchable: by words (BM25), by meaning (vectors), by both together.

The two rankings are joined by reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009): a
passage's score is the sum of 1 / (60 + rank) over the rankings that have it.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...mlx_model.checkpoints.files import file_sha256
from ...runtime.embedder import Embedder
from ...runtime.errors import InputError
from ..models import StageProgress, Stages
from .index_store import IndexStore, default_place
from .pages import Document
from .passages import Hit, Passage
from .question import Filter, parse, resolve
from .split import SPLITTER_VERSION

MODES = ("hybrid", "bm25", "vector")
RRF_K = 60  # of reciprocal rank fusion, as its paper has it
_DEPTH = 100  # passages of each ranking that are joined
_BATCH = 256  # passages whose vectors are written at once
_PROBE = "The vector of this sentence tells embedders apart."
# What questions are made of and documents seldom answer with; left out of the words searched for.
_STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "been", "by", "can", "could", "did", "do"),
    *("does", "for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is", "it"),
    *("its", "me", "my", "of", "on", "or", "our", "should", "so", "some", "that", "the"),
    *("their", "them", "there", "these", "they", "this", "those", "to", "was", "we", "were"),
    *("what", "when", "where", "which", "who", "whom", "whose", "why", "will", "with", "would"),
    *("you", "your"),
}
_WORD = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")


@dataclass(frozen=True)
class SearchResult:
    """The answer to a question."""

    hits: tuple[Hit, ...]  # best first
    filter: Filter | None  # what the question named; where it is empty there are no hits


class Index:
    """An index in one directory, and the embedder that gives passages and questions vectors."""

    def __init__(self, place: Path, embedder: Embedder | None):
        self._store = IndexStore(place)
        self._embedder = embedder
        self._number: int | None = None  # the embedder's, in the index
        self._cached: tuple[object, np.ndarray, np.ndarray] | None = None  # state, ids, vectors

    @property
    def path(self) -> Path:
        """The index's file."""
        return self._store.path

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self, paths: Iterable[Path | str], stages: Stages | None = None, *, ocr: bool = True
    ) -> list[str]:
        """Index files; their sha256, in order. What is in the index already costs nothing.

        `ocr` is that of `read.read_document`. After an interruption the same call goes on. Raises
        InputError for a file that cannot be read; those before it are in the index.
        """
        from .read import read_document

        version = _version(ocr)
        added = []
        for path in (Path(path).expanduser() for path in paths):
            sha256 = _sha256(path)
            if self._store.has(sha256, version):
                self._store.seen(path, sha256)
            else:
                progress = stages(f"reading {path.name}", "pages") if stages else None
                document = read_document(path, ocr=ocr, progress=progress)
                sha256 = document.sha256
                self._store.put(document, version)
            added.append(sha256)
        self.embed(stages("indexing", "pages") if stages else None, added)
        return added

    def put(self, document: Document, *, ocr: bool = True) -> None:
        """Index a document that was read just now, without vectors; `embed` makes those.

        One that is there already, by the same version of the reader, costs nothing.
        """
        self._store.put(document, _version(ocr))

    def embed(
        self, progress: StageProgress | None = None, documents: Sequence[str] | None = None
    ) -> None:
        """Give each passage of `documents`, or of all, its vector; nothing without an embedder.

        `progress` is called with pages done and those that there are to do.
        """
        if self._embedder is None:
            return
        number = self._embedder_number()
        missing = self._store.without_vectors(number, documents)
        pages = [(document, page) for _, document, page in missing]
        total = len(set(pages))
        for start in range(0, len(missing), _BATCH):
            ids = [key for key, *_ in missing[start : start + _BATCH]]
            passages = self._store.passages(ids)
            ids = [key for key in ids if key in passages]  # another process may have removed some
            texts = [embedded_text(passages[key]) for key in ids]
            if ids:
                self._store.put_vectors(number, ids, self._embedder.embed(texts))
            if progress is not None:
                left = set(pages[start + _BATCH :])
                progress(total - len(left), total)

    def remove(self, sha256: str) -> bool:
        """Take a document out; whether it was there."""
        return self._store.remove(sha256)

    def document(self, sha256: str) -> Document | None:
        """A document as it was read, its path absolute, or None."""
        return self._store.document(sha256)

    def search(
        self,
        question: str,
        k: int = 5,
        mode: str = "hybrid",
        documents: Sequence[str] | None = None,
    ) -> SearchResult:
        """The k best passages for a question, in `documents` (sha256) or in all.

        A question that names pages or sections gets passages from there alone, those that match
        first, as far as k goes; the result's filter says what was taken. Raises InputError for an
        unknown mode, and for one that needs an embedder when there is none.
        """
        if mode not in MODES:
            raise InputError(f"there is no mode {mode!r}; choose {', '.join(MODES)}")
        if mode != "bm25" and self._embedder is None:
            raise InputError(f"mode {mode!r} needs an embedder; choose bm25 without one")
        reference = parse(question)
        if reference is None:
            chosen = None if documents is None else self._chosen(documents, None)
            return SearchResult(self._ranked(question, k, mode, chosen), None)
        taken = resolve(reference, self._store.contents(documents))
        if taken.empty:
            return SearchResult((), taken)
        chosen = self._chosen([*taken.pages, *taken.sections], taken)
        if not chosen:
            taken = replace(taken, statement=f"{taken.statement}, without text")
        # "What is on page 12?" asks for the page as it stands.
        text = reference.rest if _telling(reference.rest) else ""
        return SearchResult(self._ranked(text, k, mode, chosen), taken)

    def _chosen(self, documents: Sequence[str], taken: Filter | None) -> list[int]:
        found = []
        for sha256 in documents:
            pages = taken.pages.get(sha256, ()) if taken else ()
            sections = taken.sections.get(sha256, ()) if taken else ()
            found += self._store.chosen(sha256, pages, sections)
        return found

    def _ranked(self, text: str, k: int, mode: str, chosen: list[int] | None) -> tuple[Hit, ...]:
        """Hits among the passages `chosen` (None: all); those that no ranking has come last."""
        allowed = None if chosen is None else set(chosen)
        by_words = self._by_words(text, allowed) if mode != "vector" else []
        by_meaning = self._by_meaning(text, allowed) if mode != "bm25" else []
        ranks = [{key: i for i, (key, _) in enumerate(r, 1)} for r in (by_words, by_meaning)]
        scores = fuse(ranks)
        order = sorted(scores, key=lambda key: (-scores[key], key))
        if chosen is not None:
            order += [key for key in chosen if key not in scores]
        order = order[:k]
        passages = self._store.passages(order)
        bm25, similarity = dict(by_words), dict(by_meaning)
        return tuple(
            Hit(
                passages[key],
                scores.get(key, 0.0),
                ranks[0].get(key),
                ranks[1].get(key),
                bm25.get(key),
                similarity.get(key),
            )
            for key in order
            if key in passages
        )

    def _by_words(self, text: str, allowed: set[int] | None) -> list[tuple[int, float]]:
        query = fts_query(text)
        if not query:
            return []
        found = self._store.matches(query)
        return [item for item in found if allowed is None or item[0] in allowed][:_DEPTH]

    def _by_meaning(self, text: str, allowed: set[int] | None) -> list[tuple[int, float]]:
        if not _WORD.search(text):
            return []
        ids, vectors = self._vectors()
        if allowed is not None:
            kept = np.isin(ids, np.fromiter(allowed, np.int64, len(allowed)))
            ids, vectors = ids[kept], vectors[kept]
        if not len(ids):
            return []
        similarity = self._embedder.similarity(self._embedder.embed([text]), vectors)[0]
        order = np.argsort(-similarity, kind="stable")[:_DEPTH]
        return [(int(ids[i]), float(similarity[i])) for i in order]

    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        number = self._embedder_number()
        state = self._store.state()
        if self._cached is None or self._cached[0] != state:
            self._cached = (state, *self._store.vectors(number))
        return self._cached[1:]

    def _embedder_number(self) -> int:
        if self._number is None:
            self._number = self._store.embedder(self._embedder.embed([_PROBE])[0])
        return self._number


def open_index(place: Path | None, embedder: Embedder | None) -> Index:
    """The index in the directory `place`; None: `index_store.default_place`.

    Without an embedder it searches by words alone. One that is damaged is made anew. Raises
    InputError where the directory cannot be used.
    """
    return Index(place or default_place(), embedder)


def embedded_text(passage: Passage) -> str:
    """What the vector of a passage is made of: its section, where it stands under one, and it."""
    return f"{passage.section}\n{passage.text}" if passage.section else passage.text


def fts_query(text: str) -> str:
    """A question as an FTS5 query: any of its words, each quoted; "" where it has none."""
    words = _telling(text) or _WORD.findall(text.lower())
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(words))


def fuse(rankings: Sequence[dict[int, int]]) -> dict[int, float]:
    """Ranks from 1, by key, of several rankings → reciprocal rank fusion's scores."""
    scores: dict[int, float] = {}
    for ranks in rankings:
        for key, rank in ranks.items():
            scores[key] = scores.get(key, 0.0) + 1 / (RRF_K + rank)
    return scores


def _telling(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _version(ocr: bool) -> str:
    """Of what makes passages of a file; other ones read it again."""
    from .read import READER_VERSION

    return f"{READER_VERSION}.{SPLITTER_VERSION}{'' if ocr else ' without OCR'}"


def _sha256(path: Path) -> str:
    """ "" where the file cannot be read; reading it says why."""
    with suppress(OSError, ValueError):
        return file_sha256(path) if path.is_file() else ""
    return ""
