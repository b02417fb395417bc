"""The questions of benchmarks/retrieval.py, and what the index finds on real manuals."""

import json
import re
from collections import Counter
from pathlib import Path

import pypdfium2
import pytest

from pippin.apps.documents.index import MODES, embedded_text, open_index
from pippin.apps.documents.read import read_document
from pippin.apps.documents.split import split
from pippin.apps.embedders import load_embedder
from pippin.mlx_model.checkpoints.files import file_sha256
from support.documents import manuals

_ROOT = Path(__file__).parent.parent.parent
_ASKED = json.loads((_ROOT / "benchmarks/retrieval_questions.json").read_text("utf-8"))
_COPIED = 6  # words in a row that make a copy


def test_questions_are_spread_over_manuals_and_halves():
    questions = _ASKED["questions"]
    assert len({item["question"] for item in questions}) == len(questions) >= 80
    counts = Counter((item["manual"], item["half"]) for item in questions)
    assert counts.keys() == {(name, half) for name in _ASKED["manuals"] for half in ("dev", "test")}
    assert min(counts.values()) >= 10
    assert all(item["pages"] == sorted(set(item["pages"])) != [] for item in questions)


@pytest.mark.slow
def test_gold_pages_are_in_the_manuals_and_questions_do_not_copy_them():
    for name, sha256 in _ASKED["manuals"].items():
        path = manuals()[name]
        assert file_sha256(path) == sha256
        document = pypdfium2.PdfDocument(path)
        for item in (item for item in _ASKED["questions"] if item["manual"] == name):
            asked = _words(item["question"])
            runs = {tuple(asked[i : i + _COPIED]) for i in range(len(asked) - _COPIED + 1)}
            for page in item["pages"]:
                words = _words(document[page - 1].get_textpage().get_text_range())
                copied = runs & {tuple(words[i : i + _COPIED]) for i in range(len(words))}
                assert not copied, item["question"]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Bash's manual in an index with MiniLM, and the gold pages' ranks, by mode and question."""
    embedder = load_embedder("minilm", "onnx", threads=1)
    path = manuals()["bashref"]
    with open_index(tmp_path_factory.mktemp("bashref"), embedder) as index:
        index.add([path])
        ranks = {mode: [] for mode in MODES}
        for item in (item for item in _ASKED["questions"] if item["manual"] == "bashref"):
            for mode in MODES:
                hits = index.search(item["question"], 5, mode).hits
                pages = [hit.passage.page for hit in hits]
                rank = next((i for i, page in enumerate(pages, 1) if page in item["pages"]), None)
                ranks[mode].append(rank)
        yield embedder, read_document(path), ranks


@pytest.mark.slow
def test_hybrid_ranks_gold_pages_higher_than_either_ranking_alone(found):
    _, _, ranks = found
    rates = {mode: sum(1 / rank for rank in ranks[mode] if rank) for mode in MODES}
    assert rates["hybrid"] > max(rates["bm25"], rates["vector"])
    assert sum(rank is not None for rank in ranks["hybrid"]) > 0.6 * len(ranks["hybrid"])


@pytest.mark.slow
def test_passages_fit_into_what_minilm_reads(found):
    embedder, document, _ = found
    assert embedder.max_length == 256
    texts = [embedded_text(part.passage) for part in split(document)]
    full = [len(embedder.tokens(text)) == embedder.max_length for text in texts]
    assert sum(full) / len(full) < 0.1
