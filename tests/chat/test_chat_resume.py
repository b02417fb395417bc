"""Coming back to a conversation is never having left it, on both engines."""

from pathlib import Path

import pytest

from pippin.apps.chat import ChatSession
from pippin.apps.chat.keeper import Keeper
from pippin.apps.chat.saved import ChatStore
from pippin.apps.models import load_model

SAMPLING = {"max_tokens": 12, "temperature": 0.9, "seed": 7, "ignore_eos": True}
TURNS = ("Hello there", "And then?", "So it goes")


@pytest.fixture(params=["mlx", "onnx"])
def load(request: pytest.FixtureRequest, model: Path, folder: Path):
    """Loads the tiny model anew, as another process would."""
    path = model if request.param == "mlx" else folder
    return lambda: load_model(str(path), request.param, fetch=False)


def _keeper(load, store: ChatStore, keep_cache: str) -> Keeper:
    keeper = Keeper(ChatSession(load(), sampling=SAMPLING), {"name": "tiny"}, store)
    keeper.settings["keep_cache"] = keep_cache
    return keeper


@pytest.mark.parametrize("keep_cache", ["on", "off"])
def test_resuming(load, store: ChatStore, keep_cache: str) -> None:
    stayed = _keeper(load, store, "off")
    said = [list(stayed.session.reply(turn)) for turn in TURNS]
    left = _keeper(load, store, keep_cache)
    for turn in TURNS[:2]:
        list(left.session.reply(turn))
    left.save()
    left.save_cache()
    back = _keeper(load, store, "off")
    assert back.load(left.name).cache_refusal is None
    chunks = list(back.session.reply(TURNS[2]))
    assert "".join(c.text for c in chunks) == "".join(c.text for c in said[2])
    assert back.session.messages == stayed.session.messages
    reused = said[2][-1].stats.cached_tokens if keep_cache == "on" else 0
    assert chunks[-1].stats.cached_tokens == reused


def test_both_engines_say_the_same(model: Path, folder: Path) -> None:
    transcripts = []
    for path, backend in ((model, "mlx"), (folder, "onnx")):
        session = ChatSession(load_model(str(path), backend, fetch=False), sampling=SAMPLING)
        for turn in TURNS:
            list(session.reply(turn))
        transcripts.append(session.messages)
    assert transcripts[0] == transcripts[1]
