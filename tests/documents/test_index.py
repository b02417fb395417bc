"""The index: what is kept, what is found, and what becomes of it when things go wrong."""

import math
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.apps.documents import read
from pippin.apps.documents.index import MODES, RRF_K, embedded_text, fuse, open_index
from pippin.apps.documents.index_store import default_place
from pippin.apps.documents.pages import Document, Heading, Page
from pippin.apps.documents.split import split
from pippin.runtime.errors import InputError
from support.fake_embedder import FakeEmbedder

# Words that Porter's stemmer leaves alone, so that plain counting is the same as FTS5's.
_WORDS = ["cat", "dog", "fish", "bird", "lion", "wolf", "frog", "toad", "crab", "swan"]


def _document(name: str, *texts: str, sha256: str = "") -> Document:
    pages = tuple(
        Page(n, str(n), text, (Heading(1, str(n), f"Part {n}", 0),) if n % 2 else (), "text")
        for n, text in enumerate(texts, 1)
    )
    return Document(Path(name), sha256 or f"sha of {name}", name, pages)


def _animals(seed: int = 0, pages: int = 40) -> Document:
    """Pages of one paragraph; animals come more or less often."""
    draw = np.random.default_rng(seed)
    weights = np.arange(1, len(_WORDS) + 1) / 55
    texts = [
        " ".join(draw.choice(_WORDS, int(draw.integers(5, 60)), p=weights)) for _ in range(pages)
    ]
    return _document(f"animals-{seed}.txt", *texts)


@pytest.fixture
def index(tmp_path):
    with open_index(tmp_path / "index", FakeEmbedder()) as opened:
        yield opened


def test_ranks_and_scores_are_those_of_bm25_cosine_and_reciprocal_rank_fusion(index):
    document = _animals()
    index.put(document)
    index.embed()
    passages = [part.passage for part in split(document)]
    question = "cat dog cat swan"
    words = [passage.text.lower().split() for passage in passages]
    bm25 = _bm25(words, ["cat", "dog", "swan"])
    embedder = FakeEmbedder()
    vectors = embedder.embed([embedded_text(passage) for passage in passages])
    (asked,) = embedder.embed([question])
    cosine = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
    by_words = [i for i in np.argsort(-bm25, kind="stable") if bm25[i] > 0]
    by_meaning = list(np.argsort(-cosine, kind="stable"))
    ranks = [{int(i): r for r, i in enumerate(order, 1)} for order in (by_words, by_meaning)]
    fused = {
        i: sum(1 / (60 + rank[i]) for rank in ranks if i in rank) for i in range(len(passages))
    }

    hits = index.search(question, 1000, "bm25").hits
    assert [hit.passage.text for hit in hits] == [passages[i].text for i in by_words]
    np.testing.assert_allclose([hit.bm25 for hit in hits], bm25[by_words], rtol=1e-6)
    assert [hit.bm25_rank for hit in hits] == list(range(1, len(hits) + 1))
    assert {hit.vector_rank for hit in hits} == {None}

    hits = index.search(question, 1000, "vector").hits
    found = {hit.passage.text: hit.similarity for hit in hits}
    expected = [found[passage.text] for passage in passages]
    np.testing.assert_allclose(expected, cosine, atol=2e-3)  # kept as float16
    assert [hit.similarity for hit in hits] == sorted(found.values(), reverse=True)

    hits = index.search(question, 1000, "hybrid").hits
    assert len(hits) == len(passages)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        i = next(n for n, passage in enumerate(passages) if passage == hit.passage)
        assert hit.bm25_rank == ranks[0].get(i)
        assert hit.score == pytest.approx(fused[i], rel=0.02)  # float16 may swap close neighbours
        own = [rank for rank in (hit.bm25_rank, hit.vector_rank) if rank]
        assert hit.score == pytest.approx(sum(1 / (RRF_K + rank) for rank in own))


def _bm25(texts: list[list[str]], query: list[str]) -> np.ndarray:
    """Okapi BM25 with k1 = 1.2, b = 0.75 and Robertson's idf, never below 1e-6."""
    counts = [Counter(text) for text in texts]
    lengths = np.array([len(text) for text in texts])
    total = np.zeros(len(texts))
    for word in query:
        holding = sum(word in count for count in counts)
        idf = max(math.log((len(texts) - holding + 0.5) / (holding + 0.5)), 1e-6)
        tf = np.array([count[word] for count in counts])
        total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths / lengths.mean()))
    return total


def test_reciprocal_rank_fusion_by_hand():
    scores = fuse([{7: 1, 8: 2}, {8: 1, 9: 2}])
    assert scores == pytest.approx({7: 1 / 61, 8: 1 / 62 + 1 / 61, 9: 1 / 62})


def test_a_search_is_held_to_the_documents_that_it_names(index):
    first, second = _animals(1), _animals(2)
    index.put(first)
    index.put(second)
    index.embed()
    for mode in MODES:
        hits = index.search("cat", 1000, mode, [second.sha256]).hits
        assert {hit.passage.document for hit in hits} == {second.sha256}
        both = index.search("cat", 1000, mode).hits
        assert {hit.passage.document for hit in both} == {first.sha256, second.sha256}
        assert index.search("cat", 5, mode, []).hits == ()


@pytest.mark.parametrize("mode", MODES)
def test_a_named_page_is_all_that_is_searched_whether_words_match_or_not(index, mode):
    document = _animals()
    index.put(document)
    index.embed()
    for question in ("cat on page 7", "zebra on page 7", "What is on page 7?"):
        found = index.search(question, 100, mode)
        expected = {p.passage.text for p in split(document) if p.passage.page == 7}
        assert {hit.passage.text for hit in found.hits} == expected
        assert found.filter.statement == "page 7"
    found = index.search("cat on page 41", 5, mode)
    assert found.hits == ()
    assert found.filter.statement == "there is no page 41: animals-0.txt has 40 pages"


def test_a_page_as_it_stands_comes_in_its_order(index):
    text = "\n\n".join(f"Paragraph {n} about a cat. " + "Some more words. " * 20 for n in range(9))
    index.put(_document("long.txt", "First.", text))
    index.embed()
    hits = index.search("What is on page 2?", 100).hits
    assert [hit.passage.start for hit in hits] == sorted(hit.passage.start for hit in hits)
    assert len(hits) > 3
    assert hits[0].score == 0


def test_a_page_without_text_is_said_to_have_none(index):
    index.put(_document("scan.pdf", "First.", ""))
    found = index.search("What is on page 2?", 5, "bm25")
    assert found.hits == ()
    assert found.filter.statement == "page 2, without text"


def test_a_named_section_is_all_that_is_searched(index):
    pages = (
        Page(1, "1", "1 Cats\n\n" + "A cat. " * 30, (Heading(1, "1", "Cats", 0),), "text"),
        Page(2, "2", "1.1 Lions\n\n" + "A lion. " * 30, (Heading(2, "1.1", "Lions", 0),), "text"),
        Page(3, "3", "More on lions. " * 20, (), "text"),
        Page(4, "4", "12 Dogs\n\n" + "A dog. " * 30, (Heading(1, "12", "Dogs", 0),), "text"),
    )
    index.put(Document(Path("zoo.md"), "zoo", "zoo", pages))
    index.embed()
    seen = {
        number: {hit.passage.page for hit in index.search(f"lion in section {number}", 50).hits}
        for number in ("1", "1.1", "12")
    }
    assert seen == {"1": {1, 2, 3}, "1.1": {2, 3}, "12": {4}}
    assert index.search("section 1.1").filter.statement == "section 1.1 Lions"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with open_index(tmp_path_factory.mktemp("filled"), FakeEmbedder()) as opened:
        opened.put(_animals())
        opened.embed()
        yield opened


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.text()
    | st.from_regex(r"""["'*^:(){}+\-. ]*(AND|OR|NOT|NEAR|section:|cat|dog)["'*^:(){}+\-. ]*""")
)
@pytest.mark.parametrize("mode", MODES)
def test_no_question_is_a_syntax_error(filled, mode, question):
    hits = filled.search(question, 3, mode).hits
    assert len(hits) <= 3
    if mode == "bm25" and "cat" in question.lower().split() and "NEAR" not in question:
        assert hits


def test_accents_case_and_endings_do_not_count(index):
    index.put(_document("a.txt", "The Café was CONNECTED.", "Nothing here."))
    for word in ("cafe", "CAFÉ", "connection", "connecting"):
        assert [hit.passage.page for hit in index.search(word, 5, "bm25").hits] == [1]


def test_the_same_document_again_costs_nothing(tmp_path):
    embedder = FakeEmbedder()
    with open_index(tmp_path, embedder) as index:
        index.put(_animals())
        index.embed()
        before, changes = len(embedder.texts), index.path.stat().st_size
        index.put(_animals())
        index.embed()
        assert len(embedder.texts) == before
        assert index.path.stat().st_size == changes
        assert len(index.search("cat", 1000, "vector").hits) == 40


def test_files_are_read_once_and_a_changed_one_replaces_itself(tmp_path, monkeypatch):
    read_files = []
    monkeypatch.setattr(
        read,
        "read_document",
        lambda path, **options: read_files.append(path) or _read(path, **options),
    )
    path, copy = tmp_path / "note.txt", tmp_path / "copy.txt"
    path.write_text("A cat sat here.", "utf-8")
    stages = []

    def stage(title, unit):
        return lambda done, total: stages.append((title, unit, done, total))

    with open_index(tmp_path / "index", FakeEmbedder()) as index:
        (first,) = index.add([path], stage)
        assert stages == [("reading note.txt", "pages", 1, 1), ("indexing", "pages", 1, 1)]
        assert index.add([str(path)]) == [first]
        assert read_files == [path]
        copy.write_bytes(path.read_bytes())
        assert index.add([path, copy]) == [first, first]
        assert read_files == [path]

        path.write_text("A dog ran away.", "utf-8")
        (second,) = index.add([path])
        assert second != first
        assert [h.passage.name for h in index.search("cat", 5, "bm25").hits] == ["copy.txt"]
        assert [h.passage.name for h in index.search("dog", 5, "bm25").hits] == ["note.txt"]

        copy.write_text("A fish swam.", "utf-8")  # now no file has the first text
        index.add([copy])
        assert index.search("cat", 5, "bm25").hits == ()
        assert index.document(first) is None
        assert index.document(second).pages[0].text == "A dog ran away."
        assert len(index.search("cat", 50, "vector").hits) == 2


_read = read.read_document


def test_another_version_of_the_reader_reads_anew(tmp_path, monkeypatch):
    path = tmp_path / "note.txt"
    path.write_text("A cat sat here.", "utf-8")
    with open_index(tmp_path / "index", FakeEmbedder()) as index:
        (added,) = index.add([path])
        monkeypatch.setattr(read, "READER_VERSION", -1)
        monkeypatch.setattr(
            read,
            "read_document",
            lambda path, **_: Document(path, added, "", (Page(1, "1", "A dog.", (), "text"),)),
        )
        assert index.add([path]) == [added]
        assert [hit.passage.text for hit in index.search("dog", 5, "bm25").hits] == ["A dog."]
        assert index.search("cat", 5, "bm25").hits == ()


def test_a_file_that_cannot_be_read_leaves_those_before_it(tmp_path):
    good = tmp_path / "good.txt"
    good.write_text("A cat sat here.", "utf-8")
    with open_index(tmp_path / "index", FakeEmbedder()) as index:
        with pytest.raises(InputError, match=r"missing\.txt"):
            index.add([good, tmp_path / "missing.txt"])
        assert len(index.search("cat", 5, "bm25").hits) == 1


def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with open_index(tmp_path / "index", None) as index:
        with pytest.raises(InputError, match="is no regular file"):
            index.add([tmp_path / "pipe.txt"])
        with pytest.raises(InputError, match="is no regular file"):
            index.add(["/dev/zero"])


def test_a_document_comes_back_as_it_was_read(index):
    document = _animals()
    index.put(document)
    expected = replace(document, path=document.path.absolute())
    assert index.document(document.sha256) == expected
    assert index.document("another") is None
    assert index.remove(document.sha256)
    assert not index.remove(document.sha256)
    assert index.document(document.sha256) is None
    assert index.search("cat", 5, "bm25").hits == ()


def test_an_interrupted_run_leaves_an_index_and_goes_on(tmp_path):
    document = _animals(pages=700)
    with open_index(tmp_path, FakeEmbedder(fail_after=300)) as index:
        index.put(document)
        with pytest.raises(KeyboardInterrupt):
            index.embed()
    counts = []
    embedder = FakeEmbedder()
    with open_index(tmp_path, embedder) as index:
        assert len(index.search("cat", 1000, "bm25").hits) == 100
        assert index.search("cat", 5).hits
        asked = len(embedder.texts)
        index.embed(lambda done, total: counts.append((done, total)))
        assert 0 < len(embedder.texts) - asked < 700
        assert counts[-1] == (counts[-1][1], counts[-1][1])
        assert sorted(counts) == counts
        found = index.search("cat on pages 1-700", 1000, "vector").hits
        assert len(found) == 700
        assert sum(hit.similarity is not None for hit in found) == 100  # as deep as a ranking goes


def test_a_document_is_there_wholly_or_not_at_all(tmp_path, monkeypatch):
    with open_index(tmp_path, FakeEmbedder()) as index:
        broken = _animals(pages=30)
        broken.pages[29].__dict__["label"] = None  # refused by the table, after 29 others
        with pytest.raises(InputError):
            index.put(broken)
        assert index.document(broken.sha256) is None
        assert index.search("cat", 5, "bm25").hits == ()
        index.put(_animals(1))
        assert index.search("cat", 5, "bm25").hits


def test_threads_share_an_index(index):
    documents = [_animals(seed, pages=20) for seed in range(8)]

    def add_and_ask(document: Document) -> set[str]:
        index.put(document)
        index.embed()
        return {
            h.passage.document for h in index.search("cat", 50, documents=[document.sha256]).hits
        }

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(add_and_ask, documents))
    assert found == [{document.sha256} for document in documents]


def test_another_embedder_has_vectors_of_its_own(tmp_path):
    document = _animals()
    for seed in ("", "other", ""):
        embedder = FakeEmbedder(seed)
        with open_index(tmp_path, embedder) as index:
            index.put(document)
            index.embed()
            (hit, *_) = index.search("cat dog swan", 5, "vector").hits
            vectors = embedder.embed([embedded_text(hit.passage), "cat dog swan"])
            similarity = embedder.similarity(vectors[:1], vectors[1:])
            assert hit.similarity == pytest.approx(similarity.item(), abs=2e-3)
    assert len(embedder.texts) < 10  # the first one's vectors were still there


def test_without_an_embedder_words_are_searched(tmp_path):
    with open_index(tmp_path, None) as index:
        index.put(_animals())
        index.embed()
        assert index.search("cat", 5, "bm25").hits
        for mode in ("hybrid", "vector"):
            with pytest.raises(InputError, match="needs an embedder"):
                index.search("cat", 5, mode)
        with pytest.raises(InputError, match="choose hybrid, bm25, vector"):
            index.search("cat", 5, "both")


@pytest.mark.parametrize("damage", ["text", "head", "empty"])
def test_a_damaged_index_is_made_anew(tmp_path, damage):
    with open_index(tmp_path, FakeEmbedder()) as index:
        index.put(_animals())
        index.embed()
    data = {
        "text": b"this is no database" * 500,
        "head": bytes(4096) + index.path.read_bytes()[4096:],
        "empty": b"",
    }[damage]
    index.path.write_bytes(data)
    with open_index(tmp_path, FakeEmbedder()) as index:
        assert index.search("cat").hits == ()
        index.put(_animals())
        index.embed()
        assert index.search("cat").hits


def test_damage_that_shows_later_is_one_line_that_says_what_to_do(tmp_path):
    document = _animals()
    with open_index(tmp_path, FakeEmbedder()) as index:
        index.put(document)
    with closing(sqlite3.connect(index.path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'pages'"
        ).fetchone()
    with index.path.open("r+b") as file:
        file.seek(size * (root - 1))
        file.write(b"\xff" * size)
    with open_index(tmp_path, FakeEmbedder()) as index:
        with pytest.raises(InputError, match=r"is damaged .*; delete it and run again") as caught:
            index.document(document.sha256)
        assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be opened"):
        open_index(tmp_path / "file", None)


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    assert default_place() == tmp_path / "documents"


_ADD = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from support.fake_embedder import FakeEmbedder
from pippin.apps.documents.index import open_index
from pippin.apps.documents.pages import Document, Page
with open_index(Path({place!r}), FakeEmbedder()) as index:
    for n in [*range(20), "own " + sys.argv[1]]:
        pages = tuple(Page(p, str(p), f"a cat of {{n}} on {{p}}", (), "text") for p in range(1, 31))
        index.put(Document(Path(f"{{n}}.txt"), f"sha {{n}}", "", pages))
        index.embed()
"""


def test_two_processes_at_once_lose_nothing(tmp_path):
    tests = str(Path(__file__).parent.parent)
    code = _ADD.format(tests=tests, place=str(tmp_path))
    running = [
        subprocess.Popen([sys.executable, "-c", code, name], stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with open_index(tmp_path, FakeEmbedder()) as index:
        documents = [f"sha {n}" for n in [*range(20), "own a", "own b"]]
        for sha256 in documents:
            hits = index.search("cat on pages 1-30", 1000, "vector", [sha256]).hits
            assert sorted(hit.passage.page for hit in hits) == list(range(1, 31))
            assert all(hit.similarity is not None for hit in hits)
