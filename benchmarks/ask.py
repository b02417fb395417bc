"""How often `pippin ask` is wrong about what is in a document, and about its sources.

    python benchmarks/ask.py [--index DIRECTORY] [--json]

On the manuals and questions of retrieval.py. "Not in the document": each manual is asked its own
questions, those of the other manuals (some of which it may answer by chance) and everyday ones.
Sources: sentences of the passages found, as they stand and changed so that they no longer say what
the page says. --index keeps the index, which retrieval.py can use too.
"""

import argparse
import json
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import describe
from retrieval import pinned_manuals

from pippin.apps.documents.answer import weigh
from pippin.apps.documents.index import Index, open_index
from pippin.apps.documents.marks import Sources
from pippin.apps.documents.sentences import content_words, numbers, split_sentences
from pippin.apps.embedders import load_embedder

EVERYDAY = (
    "Who won the football world cup in 1998?",
    "What is the capital of Portugal?",
    "How long should I boil an egg?",
    "When was the French Revolution?",
    "Which vitamins are in an orange?",
    "How do vaccines protect against measles?",
    "What does a notary charge for a house sale?",
    "Who painted the ceiling of the Sistine Chapel?",
    "How many legs does a spider have?",
    "Which trains go from Vienna to Prague?",
    "How is cheese made from milk?",
    "What is the boiling point of ethanol?",
    "Who wrote War and Peace?",
    "How do I remove red wine from a carpet?",
    "What causes the northern lights?",
    "Which muscles does swimming train?",
    "When should tomatoes be planted?",
    "What is the penalty for speeding in Norway?",
    "How does a heat pump work?",
    "Which bird lays the largest egg?",
)
_TOP = 5
_WORDS = range(6, 30)  # content words of the sentences that are tried
_VERB = re.compile(r"\b(is|are|can|will|may|should|must|does|was|were)\b")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--index", type=Path, help="keep the index here, and use what it has")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    asked = json.loads(Path(__file__).with_name("retrieval_questions.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        embedder = load_embedder("minilm", "onnx")
        with open_index(arguments.index or Path(temporary), embedder) as index:
            index.add(pinned_manuals(asked["manuals"]).values())
            result: dict[str, Any] = {"machine": describe()}
            result["refused"] = _refused(index, asked)
            result["marked"] = _marked(index, asked, embedder)
    print(json.dumps(result)) if arguments.json else _print(result)


def _refused(index: Index, asked: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Questions that are answered with "not in the document", of how many."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    everyday = [
        ("everyday", half, q) for half, q in zip(("dev", "test") * 10, EVERYDAY, strict=True)
    ]
    questions = [(q["manual"], q["half"], q["question"]) for q in asked["questions"]]
    for manual, sha256 in asked["manuals"].items():
        for meant, half, question in [*questions, *everyday]:
            hits = index.search(question, _TOP, documents=[sha256]).hits
            kind = "its own" if meant == manual else meant if meant == "everyday" else "another's"
            counts[f"{kind}, {half}"][0] += not weigh(question, hits).enough
            counts[f"{kind}, {half}"][1] += 1
    return {kind: tuple(count) for kind, count in sorted(counts.items())}


def _marked(index: Index, asked: dict[str, Any], embedder: Any) -> dict[str, tuple[int, int]]:
    """Sentences that get a source, of how many, by what was done to them."""
    draw = random.Random(0)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    found = [
        [hit.passage for hit in index.search(q["question"], _TOP, documents=[sha256]).hits]
        for q in asked["questions"]
        for sha256 in [asked["manuals"][q["manual"]]]
    ]
    for number, passages in enumerate(found):
        sources = Sources(passages, [passage.text for passage in passages], embedder)
        elsewhere = found[(number + len(found) // 2) % len(found)]  # of another manual
        sentence = draw.choice(list(_sentences(passages)) or [""])
        for kind, said in _changed(sentence, list(_sentences(elsewhere)), draw):
            counts[kind][0] += sources.support(said) is not None
            counts[kind][1] += 1
    return {kind: tuple(count) for kind, count in counts.items()}


def _sentences(passages: list[Any]) -> Iterator[str]:
    for passage in passages:
        for start, end in split_sentences(passage.text):
            sentence = " ".join(passage.text[start:end].split())
            if len(set(content_words(sentence))) in _WORDS and sentence.endswith("."):
                yield sentence


def _changed(sentence: str, others: list[str], draw: random.Random) -> Iterator[tuple[str, str]]:
    words = sentence.split()
    if not words or not others:
        return
    yield "as it stands", sentence
    yield "every sixth word left out", " ".join(w for n, w in enumerate(words, 1) if n % 6)
    if numbers(sentence):
        yield "another number", re.sub(r"\d+", lambda m: str(int(m[0]) + 1), sentence)
    if _VERB.search(sentence) and " not " not in sentence:
        yield "with a not", _VERB.sub(lambda m: f"{m[0]} not", sentence, count=1)
    other = draw.choice(others).split()
    half = len(words) // 2
    yield (
        "the second half of another sentence",
        " ".join([*words[:half], *other[len(other) // 2 :]]),
    )
    yield "a sentence of another manual", " ".join(other)


def _print(result: dict[str, Any]) -> None:
    for title, key, verb in (
        ("Questions", "refused", "refused"),
        ("Sentences", "marked", "marked"),
    ):
        print(f"| {title} | {verb} | of |\n|---|---|---|")
        for kind, (count, total) in result[key].items():
            print(f"| {kind} | {count} | {total} |")
        print()


if __name__ == "__main__":
    main()
