"""`pippin chat` at a terminal with a model that says what the test has written.

Run as a program: `python scripted_chat.py FOLDER`. FOLDER/replies.json maps what the user says to
the reply, whatever files come with it; "endless" is answered without an end. The context is 4000
bytes, as tokens.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from pippin.apps.chat import ChatSession
from pippin.apps.chat.documents import AttachedDocuments
from pippin.apps.chat.keeper import Keeper
from pippin.apps.chat.saved import ChatStore
from pippin.apps.models import Model
from pippin.commands.chat_terminal.begin import begin
from pippin.commands.console import Progress
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer

from .byte_tokenizer import IM_END, IM_START, VOCAB, write_tokenizer
from .fake_embedder import FakeEmbedder
from .fake_engine import FakeEngine

CONTEXT = 4000
_HEAD = b"assistant\n"


def make_replies(folder: Path, replies: dict[str, str]) -> Path:
    """A FOLDER for this program."""
    write_tokenizer(folder)
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text("utf-8"))
    fields["chat_template"] += "{# earlier <think>…</think> is cut #}"
    config.write_text(json.dumps(fields), "utf-8")
    (folder / "replies.json").write_text(json.dumps(replies), "utf-8")
    return folder


def scripted_command(folder: Path, *options: str) -> list[str]:
    """What runs this program."""
    return [sys.executable, "-c", _MAIN, str(folder), *options]


_MAIN = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    "from support.scripted_chat import main; main()"
)


def _model(replies: dict[str, str], pace: float):
    def model(tokens: list[int]) -> np.ndarray:
        turns = _split(tokens)
        said = bytes(t for t in turns[-1][len(_HEAD) :] if t < 256)
        asked = bytes(turns[-2]).removeprefix(b"user\n").decode()
        token = _next(asked, len(said), replies)
        if said:
            time.sleep(pace)
        return np.where(np.arange(VOCAB) == token, 20.0, 0.0).astype(np.float32)

    return model


def _split(tokens: list[int]) -> list[list[int]]:
    """The tokens of each turn, its role first, without the marks around it."""
    starts = [i for i, token in enumerate(tokens) if token == IM_START]
    ends = [*starts[1:], len(tokens) + 2]
    return [tokens[a + 1 : b - 2] for a, b in zip(starts, ends, strict=True)]


def _next(asked: str, place: int, replies: dict[str, str]) -> int:
    if asked == "endless":
        return b"on and "[place % 7]
    bare = asked.rpartition("</file>\n\n")[2]
    reply = replies.get(bare, "You said: " + asked).encode()
    return reply[place] if place < len(reply) else IM_END


def main() -> None:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    replies = json.loads((folder / "replies.json").read_text("utf-8"))
    pace = float(os.environ.get("PACE", "0"))
    engine = FakeEngine(_model(replies, pace), VOCAB, CONTEXT)
    model = Model(Generator(engine, Tokenizer.from_folder(folder)), {})
    store = None if "--no-save" in options else ChatStore()
    keeper = Keeper(ChatSession(model), {"name": "fake"}, store, AttachedDocuments(FakeEmbedder))
    resumed = keeper.load(store.find(None)) if "--resume" in options else None
    with Progress() as progress:
        try:
            begin(keeper, resumed, progress, lambda name: model, False)
        except KeyboardInterrupt:
            sys.exit(130)
