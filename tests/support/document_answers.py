"""A model that answers as the test has written, and documents to ask it about."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pippin.apps.documents.pages import Document, Page
from pippin.apps.models import Model
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer

from .byte_tokenizer import IM_END, IM_START, VOCAB, write_tokenizer
from .fake_engine import FakeEngine

PAGES = (
    "Of this book.",
    "The shell reads its startup files in a fixed order. It keeps 500 lines of history.",
    "A coprocess is a shell command that is preceded by the coproc reserved word.\n\n"
    "It does not wait for the command to finish.",
    "Arrays are indexed from zero. A subscript must be an arithmetic expression.",
)
LABELS = ("i", "1", "2", "3")
COPROCESS = "A coprocess is a shell command that is preceded by the coproc reserved word."
_HEAD = len("assistant\n")


def book(name: str = "book.pdf", sha256: str = "sha") -> Document:
    """Four pages, the first printed as i, the others as 1 to 3."""
    pages = zip(range(1, 5), LABELS, PAGES, strict=True)
    return Document(
        Path(name),
        sha256,
        "A book",
        tuple(Page(n, label, text, (), "text") for n, label, text in pages),
    )


def answering(folder: Path, reply: Callable[[str], str], context: int = 4000) -> Model:
    """A model of bytes; `reply` gets the text of the prompt's user turn."""
    tokenizer = Tokenizer.from_folder(write_tokenizer(folder))

    def model(tokens: list[int]) -> np.ndarray:
        starts = [at for at, token in enumerate(tokens) if token == IM_START]
        asked = bytes(t for t in tokens[starts[-2] : starts[-1]] if t < 256).decode()
        said = len(tokens) - starts[-1] - 1 - _HEAD
        answer = reply(asked.removeprefix("user\n").rstrip("\n")).encode()
        token = answer[said] if said < len(answer) else IM_END
        return np.where(np.arange(VOCAB) == token, 20.0, 0.0).astype(np.float32)

    return Model(Generator(FakeEngine(model, VOCAB, context), tokenizer), {})
