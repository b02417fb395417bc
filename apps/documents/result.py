"""All that came of one question, gathered from the events of `answer.ask`, and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .answer import (
    Answered,
    Attributed,
    Contrast,
    Event,
    Found,
    NotAttributed,
    NotFound,
)
from .attribution import CAVEAT, Attribution
from .marks import Claim
from .pages import Document
from .passages import Hit, Passage
from .read import pages_without_text
from .reader import Sentence


@dataclass
class Result:
    """A question and what came of it; what has not come is None."""

    question: str
    model: str
    backend: str
    documents: tuple[Document, ...]  # that were asked
    found: Found | None = None
    not_found: str | None = None  # why the documents do not have it
    nearest: tuple[str, ...] = ()  # then, as of `NotFound`
    answered: Answered | None = None
    attribution: Attribution | None = None
    not_attributed: str | None = None
    contrast: str | None = None  # the answer without the passages

    @property
    def without_source(self) -> str:
        """How many of the answer's sentences have no source."""
        missing, count = self.answered.unsupported, len(self.answered.sentences)
        return f"{missing} of {count} sentences without a source on these pages."

    def add(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case Found():
                self.found = event
            case NotFound(reason, nearest):
                self.not_found, self.nearest = reason, nearest
            case Answered():
                self.answered = event
            case Attributed(attribution):
                self.attribution = attribution
            case NotAttributed(reason):
                self.not_attributed = reason
            case Contrast(text):
                self.contrast = (self.contrast or "") + text


class Names:
    """What passages are called in front of people, where these documents are asked."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._several = len(documents) > 1
        self._files = _told_apart({document.sha256: document.path for document in documents})
        self._paged = {
            document.sha256
            for document in documents
            if len(document.pages) > 1 or document.path.suffix.lower() == ".pdf"
        }

    @property
    def files(self) -> tuple[str, ...]:
        """The documents' files, as `file` calls them."""
        return tuple(self._files.values())

    def file(self, passage: Passage) -> str:
        """The file's name, with as much of its path as tells it from the others: "old/bash.pdf"."""
        return self._files.get(passage.document, passage.name)

    def mark(self, passage: Passage) -> str:
        """What stands after a sentence: "[p. 47]", of several documents "[p. 47, bash.pdf]"."""
        file = self.file(passage)
        if passage.document in self._paged:
            return f"[p. {passage.label}, {file}]" if self._several else f"[p. {passage.label}]"
        number = passage.section.partition(" ")[0]
        section = f", {number}" if number[:1].isdigit() else ""
        return f"[{file}{section}]"

    def place(self, passage: Passage) -> str:
        """Where a passage is: "p. 47 (PDF page 59), bash.pdf, 3.2 Shell Syntax"."""
        parts = []
        if passage.document in self._paged:
            number = str(passage.page)
            physical = f" (PDF page {number})" if passage.label != number else ""
            parts.append(f"p. {passage.label}{physical}")
        if self._several or not parts:
            parts.append(self.file(passage))
        return ", ".join([*parts, passage.section] if passage.section else parts)


def _told_apart(paths: Mapping[str, Path]) -> dict[str, str]:
    """Of each path the last part, or as many as no other one ends with."""
    names = {}
    for key, path in paths.items():
        others = [other.parts for other in paths.values() if other != path]
        counts = range(1, len(path.parts) + 1)
        ends = (path.parts[-count:] for count in counts)
        end = next((e for e in ends if all(o[-len(e) :] != e for o in others)), path.parts)
        names[key] = "/".join(end)
    return names


def has_text(document: Document) -> bool:
    """Whether any of its pages has text."""
    return any(page.text.strip() for page in document.pages)


def page_notes(documents: Sequence[Document]) -> list[str]:
    """A line for each document that has pages without text, or with text by OCR."""
    notes = []
    for document in documents:
        if without := pages_without_text(document):
            notes.append(without)
        if count := sum(page.source == "ocr" for page in document.pages):
            word = "page" if count == 1 else "pages"
            notes.append(f"{document.path.name}: the text of {count:,} {word} is OCR's")
    return notes


def to_json(result: Result) -> dict[str, Any]:
    """The result as plain data; `passage` counts from 1, as the prompt does."""
    found, answered, names = result.found, result.answered, Names(result.documents)
    hits = found.hits[: len(answered.passages)] if answered else found.hits
    return {
        "question": result.question,
        "model": result.model,
        "backend": result.backend,
        "documents": [_document(document) for document in result.documents],
        "filter": found.filter.statement if found.filter else None,
        "evidence": asdict(found.evidence),
        "not_in_the_documents": result.not_found,
        "answer": answered.text if answered else None,
        "sentences": _sentences(result, names) if answered else [],
        "without_source": answered.unsupported if answered else 0,
        "passages": [_passage(result, names, index, hit) for index, hit in enumerate(hits)],
        "attention": _attention(result),
        "answer_without_passages": result.contrast,
        "finish_reason": answered.finish_reason if answered else None,
        "stats": asdict(answered.stats) if answered and answered.stats else None,
    }


def _document(document: Document) -> dict[str, Any]:
    by = {
        source: [page.number for page in document.pages if page.source == source]
        for source in ("none", "ocr")
    }
    return {
        "path": str(document.path),
        "sha256": document.sha256,
        "title": document.title,
        "pages": len(document.pages),
        "pages_without_text": by["none"],
        "pages_by_ocr": by["ocr"],
    }


def _sentences(result: Result, names: Names) -> list[dict[str, Any]]:
    made = []
    for index, sentence in enumerate(result.answered.sentences):
        document = {
            "text": sentence.text,
            "source": _source(result, names, sentence),
            "refused_marks": [_claim(claim) for claim in sentence.unfounded],
        }
        if result.attribution is not None:
            shares = result.attribution.sentences[index]
            document["attention"] = {
                "passages": list(shares.passages),
                "first_token": shares.first,
                "rest_of_prompt": shares.prompt,
                "answer_so_far": shares.answer,
            }
        made.append(document)
    return made


def _source(result: Result, names: Names, sentence: Sentence) -> dict[str, Any] | None:
    support = sentence.support
    if support is None:
        return None
    passage = result.answered.passages[support.passage]
    return {
        "passage": support.passage + 1,
        "document": passage.document,
        "file": names.file(passage),
        "page": passage.page,
        "label": passage.label,
        "quote": support.quote,
        "rule": support.rule,
        "score": support.score,
    }


def _claim(claim: Claim) -> str:
    return f"[{claim.number}]" if claim.number is not None else f"[p. {claim.label}]"


def _passage(result: Result, names: Names, index: int, hit: Hit) -> dict[str, Any]:
    answered = result.answered
    nearest = answered.nearest if answered else result.nearest
    return {
        "passage": index + 1,
        "document": hit.passage.document,
        "file": names.file(hit.passage),
        "page": hit.passage.page,
        "label": hit.passage.label,
        "section": hit.passage.section,
        "text": answered.passages[index].text if answered else hit.passage.text,
        "nearest_sentence": nearest[index] if index < len(nearest) else None,
        "score": hit.score,
        "bm25": hit.bm25,
        "bm25_rank": hit.bm25_rank,
        "similarity": hit.similarity,
        "similarity_rank": hit.vector_rank,
        "tokens": result.attribution.tokens[index] if result.attribution else None,
    }


def _attention(result: Result) -> dict[str, Any] | None:
    if result.attribution is None:
        return None
    return {"layers": list(result.attribution.layers), "heads": "all", "note": CAVEAT}
