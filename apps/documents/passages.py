"""Passages: what is indexed, found and quoted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """Some paragraphs of one page."""

    document: str  # sha256 of the file
    name: str  # the file's name, for people
    page: int  # physical, from 1
    label: str  # as printed
    section: str  # the number and title of the heading that it stands under, or ""
    start: int  # in the page's text, in characters
    end: int
    text: str  # page.text[start:end]


@dataclass(frozen=True)
class Hit:
    """A passage that was found, and why."""

    passage: Passage
    score: float  # that the hits are ordered by
    bm25_rank: int | None  # from 1; None where that search did not find it
    vector_rank: int | None
    bm25: float | None  # larger is better
    similarity: float | None  # cosine, −1…1
