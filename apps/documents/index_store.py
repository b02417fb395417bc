"""The index on disk: one SQLite file with pages, passages, their words and their vectors.

It is a cache: everything in it can be made again from the documents. A document's pages and
passages are written in one transaction, vectors in batches, so that an interrupted run leaves what
it has finished. Writers of other processes are waited for (write-ahead log, busy timeout).
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ...mlx_model.checkpoints import store
from ...mlx_model.checkpoints.lock import locked
from ...runtime.errors import InputError
from .pages import Document, Heading, Page
from .passages import Passage
from .question import Contents
from .split import Split, split

_FORMAT = 1  # of the tables; it stands in the file's name, so that versions do not meet
_BUSY_SECONDS = 60  # how long another process's transaction is waited for
_SAME_EMBEDDER = 0.999  # least cosine of the probe's vectors; onnxruntime and MLX differ by 1e-6
_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, nor are passages' ids
    sha256 TEXT NOT NULL UNIQUE,
    version TEXT NOT NULL,  -- of reader and splitter
    path TEXT NOT NULL,
    title TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS paths (
    path TEXT PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS pages (
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    number INTEGER NOT NULL,
    label TEXT NOT NULL,
    text TEXT NOT NULL,
    headings TEXT NOT NULL,  -- JSON
    source TEXT NOT NULL,
    PRIMARY KEY (document, number)
);
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    page INTEGER NOT NULL,
    section TEXT NOT NULL,
    sections TEXT NOT NULL,  -- |3|3.1|: the numbers of all that it has a part of
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS passages_of_document ON passages (document, page);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = 'passages', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER IF NOT EXISTS words_added AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER IF NOT EXISTS words_removed AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TABLE IF NOT EXISTS embedders (id INTEGER PRIMARY KEY, probe BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (
    embedder INTEGER NOT NULL REFERENCES embedders,
    passage INTEGER NOT NULL REFERENCES passages ON DELETE CASCADE,
    vector BLOB NOT NULL,  -- float16 [E]
    PRIMARY KEY (embedder, passage)
) WITHOUT ROWID;
"""
_PASSAGE = """
SELECT passages.id, documents.sha256, documents.path, page, label, section, start, stop,
    passages.text
FROM passages JOIN documents ON documents.id = passages.document
JOIN pages ON pages.document = passages.document AND pages.number = passages.page
"""


def default_place() -> Path:
    """Where the index is kept: documents/ in the store's directory."""
    return store.home() / "documents"


class IndexStore:
    """Reads and writes the index in the directory `place`; made new where it is damaged."""

    def __init__(self, place: Path):
        """Raises InputError where the directory cannot be used."""
        self._lock = threading.RLock()  # threads share one connection, so one transaction
        self.path = place / f"index-{_FORMAT}.sqlite"
        try:
            place.mkdir(parents=True, exist_ok=True)
            with locked(place / "index.lock"):
                self._connection = self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(
                f"the index {self.path} cannot be opened: {error}; PIPPIN_HOME names a directory "
                "that can be written"
            ) from error

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def has(self, sha256: str, version: str) -> bool:
        """Whether the document is there as this version would read it."""
        query = "SELECT 1 FROM documents WHERE sha256 = ? AND version = ?"
        return bool(self._rows(query, (sha256, version)))

    def put(self, document: Document, version: str) -> None:
        """Write a document's pages and passages, unless they are there.

        What was read from the same path before, or of the same content by another version, goes.
        """
        parts = list(split(document))
        with self._transaction() as db:
            if not self.has(document.sha256, version):
                db.execute("DELETE FROM documents WHERE sha256 = ?", (document.sha256,))
                made = db.execute(
                    "INSERT INTO documents (sha256, version, path, title) VALUES (?, ?, ?, ?)",
                    (document.sha256, version, str(document.path), document.title),
                )
                key = made.lastrowid
                db.executemany(
                    "INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?)",
                    (_page_row(key, page) for page in document.pages),
                )
                db.executemany(
                    "INSERT INTO passages (document, page, section, sections, start, stop, text) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (_passage_row(key, part) for part in parts),
                )
            _seen(db, document.path, document.sha256)

    def seen(self, path: Path, sha256: str) -> None:
        """Remember that `path` holds this document; one that no path holds any more goes."""
        with self._transaction() as db:
            _seen(db, path, sha256)

    def remove(self, sha256: str) -> bool:
        """Take a document out; whether it was there."""
        with self._transaction() as db:
            gone = db.execute("DELETE FROM documents WHERE sha256 = ?", (sha256,))
            return gone.rowcount > 0

    def document(self, sha256: str) -> Document | None:
        """A document as it was read, its path absolute, or None."""
        found = self._rows("SELECT id, path, title FROM documents WHERE sha256 = ?", (sha256,))
        if not found:
            return None
        key, path, title = found[0]
        rows = self._rows(
            "SELECT number, label, text, headings, source FROM pages WHERE document = ? "
            "ORDER BY number",
            (key,),
        )
        pages = tuple(
            Page(number, label, text, tuple(Heading(**h) for h in json.loads(headings)), source)
            for number, label, text, headings, source in rows
        )
        return Document(Path(path), sha256, title, pages)

    def contents(self, documents: Sequence[str] | None) -> list[Contents]:
        """Labels and sections of documents, of all of them for None, in the order of adding."""
        found = []
        for key, sha256, path in self._rows("SELECT id, sha256, path FROM documents ORDER BY id"):
            if documents is not None and sha256 not in documents:
                continue
            query = "SELECT label, headings FROM pages WHERE document = ? ORDER BY number"
            rows = self._rows(query, (key,))
            headings = [h for _, text in rows if text != "[]" for h in json.loads(text)]
            sections = tuple((h["number"], h["title"]) for h in headings if h["number"])
            labels = tuple(label for label, _ in rows)
            found.append(Contents(sha256, Path(path).name, labels, sections))
        return found

    def chosen(self, document: str, pages: Sequence[int], sections: Sequence[str]) -> list[int]:
        """Ids of a document's passages on the pages or in the sections, in their order.

        All of them where neither is given.
        """
        rows = self._rows(
            "SELECT passages.id, page, sections FROM passages "
            "JOIN documents ON documents.id = passages.document WHERE sha256 = ? "
            "ORDER BY passages.id",
            (document,),
        )
        if pages:
            wanted = set(pages)
            return [key for key, page, _ in rows if page in wanted]
        if sections:
            parts = [part for number in sections for part in (f"|{number}|", f"|{number}.")]
            return [key for key, _, held in rows if any(p in held.casefold() for p in parts)]
        return [key for key, _, _ in rows]

    def matches(self, query: str) -> list[tuple[int, float]]:
        """Passage ids with their BM25, best first, of an FTS5 query that is valid.

        BM25 as FTS5 has it: k1 = 1.2, b = 0.75, larger is better.
        """
        return self._rows(
            "SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? "
            "ORDER BY score DESC, rowid",
            (query,),
        )

    def passages(self, ids: Sequence[int]) -> dict[int, Passage]:
        """Passages by their ids."""
        marks = ", ".join("?" * len(ids))
        rows = self._rows(f"{_PASSAGE} WHERE passages.id IN ({marks})", tuple(ids))
        return {key: Passage(sha256, Path(path).name, *rest) for key, sha256, path, *rest in rows}

    def embedder(self, probe: np.ndarray) -> int:
        """The number of the embedder that gives the probe text this vector [E]."""
        unit = _unit(probe)
        with self._transaction() as db:
            for key, blob in db.execute("SELECT id, probe FROM embedders ORDER BY id"):
                known = np.frombuffer(blob, np.float32)
                if known.shape == unit.shape and float(known @ unit) > _SAME_EMBEDDER:
                    return key
            made = db.execute("INSERT INTO embedders (probe) VALUES (?)", (unit.tobytes(),))
            return made.lastrowid

    def without_vectors(
        self, embedder: int, documents: Sequence[str] | None
    ) -> list[tuple[int, str, int]]:
        """Id, document and page of each passage that has no vector yet; None: of all documents."""
        rows = self._rows(
            "SELECT passages.id, sha256, page FROM passages "
            "JOIN documents ON documents.id = passages.document WHERE NOT EXISTS "
            "(SELECT 1 FROM vectors WHERE embedder = ? AND passage = passages.id) "
            "ORDER BY passages.id",
            (embedder,),
        )
        return [row for row in rows if documents is None or row[1] in documents]

    def put_vectors(self, embedder: int, ids: Sequence[int], vectors: np.ndarray) -> None:
        """Keep vectors [B, E]; a passage that has gone, or has one by now, is left out."""
        half = vectors.astype(np.float16)
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO vectors SELECT ?, id, ? FROM passages WHERE id = ?",
                ((embedder, row.tobytes(), key) for key, row in zip(ids, half, strict=True)),
            )

    def vectors(self, embedder: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids [B] in order and their vectors [B, E], float32."""
        rows = self._rows(
            "SELECT passage, vector FROM vectors WHERE embedder = ? ORDER BY passage", (embedder,)
        )
        ids = np.array([key for key, _ in rows], np.int64)
        data = np.frombuffer(b"".join(blob for _, blob in rows), np.float16)
        return ids, data.astype(np.float32).reshape(len(rows), -1 if rows else 0)

    def state(self) -> tuple[int, int]:
        """What changes whenever the file does, by whichever process."""
        version = self._rows("PRAGMA data_version")[0][0]
        return version, self._connection.total_changes

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:  # locked, or a full or read-only disk
            raise
        except sqlite3.DatabaseError:  # not a database, or a damaged one
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            db.executescript(_TABLES)
            db.execute("SELECT count(*) FROM words WHERE words MATCH '\"a\"'")
        except BaseException:
            db.close()
            raise
        return db

    def _rows(self, query: str, values: Iterable[object] = ()) -> list[tuple]:
        with self._lock, self._plain_failures():
            return self._connection.execute(query, tuple(values)).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing of it."""
        with self._lock, self._plain_failures():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _plain_failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InputError(f"the index {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"the index {self.path} is damaged ({error}); delete it and run again: it is made "
                "anew from the documents"
            ) from error


def _page_row(document: int, page: Page) -> tuple:
    headings = json.dumps([asdict(heading) for heading in page.headings])
    return document, page.number, page.label, page.text, headings, page.source


def _passage_row(document: int, part: Split) -> tuple:
    p = part.passage
    return document, p.page, p.section, _listed(part.sections), p.start, p.end, p.text


def _seen(db: sqlite3.Connection, path: Path, sha256: str) -> None:
    row = (str(path.absolute()), sha256)
    db.execute("INSERT OR REPLACE INTO paths SELECT ?, id FROM documents WHERE sha256 = ?", row)
    db.execute("UPDATE documents SET path = ? WHERE sha256 = ?", row)
    db.execute("DELETE FROM documents WHERE id NOT IN (SELECT document FROM paths)")


def _listed(sections: Sequence[str]) -> str:
    return f"|{'|'.join(sections)}|" if sections else ""


def _unit(vector: np.ndarray) -> np.ndarray:
    return (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)
