"""`/why`: its numbers are those of transformers' eager attention, on both engines."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pippin.apps.chat import ChatSession
from pippin.apps.chat.keeper import Keeper
from pippin.apps.chat.saved import ChatStore
from pippin.apps.chat.why import why
from pippin.apps.insight import explanation
from pippin.apps.insight.explanation import CAVEAT, choose_view
from pippin.apps.models import load_model
from pippin.runtime.errors import InputError
from support.command_line import make_chat_model
from support.terminal import Terminal

SAMPLING = {"max_tokens": 24, "temperature": 0.9, "seed": 3, "ignore_eos": True}
TURNS = ("Hello there", "And then?")
LAYER = 1  # the middle third of 3 layers
Start = Callable[..., Terminal]


@pytest.fixture(scope="module", params=["mlx", "onnx"])
def session(request: pytest.FixtureRequest) -> ChatSession:
    path = request.getfixturevalue("model" if request.param == "mlx" else "folder")
    session = ChatSession(load_model(str(path), request.param, fetch=False), sampling=SAMPLING)
    for turn in TURNS:
        list(session.reply(turn))
    return session


def _eager(model: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of the last token: the weights in LAYER [H, S], and the logits [V]."""
    torch.set_num_threads(1)
    eager = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.inference_mode():
        out = eager(torch.tensor([tokens]), output_attentions=True)
    return out.attentions[LAYER][0, :, -1].numpy(), out.logits[0, -1].numpy()


@pytest.mark.parametrize("place", [0, 7, -1], ids=["first", "within", "last"])
def test_the_numbers_are_those_of_transformers(
    session: ChatSession, model: Path, place: int
) -> None:
    exchange = session.last_exchange()
    assert len(exchange.tokens) == SAMPLING["max_tokens"]
    found = why(session, str(place))
    place %= len(exchange.tokens)
    read = [*exchange.prompt, *exchange.tokens[:place]]
    heads, logits = _eager(model, read)
    step = found.step
    assert (found.place, found.chosen.index) == (place, len(read))
    assert found.chosen.id == exchange.tokens[place]
    assert (step.layer, step.query.index, step.tokens) == (LAYER, len(read) - 1, len(read))
    idle = heads[:, sorted({0, len(read) - 2, len(read) - 1})].sum(axis=-1)
    assert step.head == int(idle.argmin())
    weights = heads[step.head]
    order = np.argsort(-weights, kind="stable")[: len(step.top)]
    assert [row.token.index for row in step.top] == order.tolist()
    assert [row.weight for row in step.top] == pytest.approx(weights[order], abs=1e-5)
    mean = heads.mean(axis=0)[order]
    assert [row.mean_weight for row in step.top] == pytest.approx(mean, abs=1e-5)
    probabilities = torch.softmax(torch.tensor(logits).double(), -1).numpy()
    for one in found.candidates:
        assert one.probability == pytest.approx(probabilities[one.token], abs=1e-5)
        assert one.rank == int(np.sum(logits > logits[one.token] + 1e-6))
    assert found.chosen.id in [one.token for one in found.candidates]
    assert [one.rank for one in found.candidates][:5] == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def spoken(model: Path) -> ChatSession:
    """A conversation whose last reply is known; bytes are tokens."""
    session = ChatSession(load_model(str(model), "mlx", fetch=False))
    session.messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "In the end, the end of the road …"},
    ]
    return session


@pytest.mark.parametrize(
    ("wanted", "place"),
    [(None, 24), ("end", 13), ("the end of", 9 + 3), ("-1", -1), ("4", 4), ("In", 0)],
    ids=["default", "word", "words", "from-the-end", "number", "first"],
)
def test_what_is_named(spoken: ChatSession, wanted: str | None, place: int) -> None:
    text = spoken.messages[-1]["content"].encode()
    found = why(spoken, wanted)
    starts = {None: b"road", "end": b"end of", "the end of": b"the end of"}
    at = text.index(starts[wanted]) if wanted in starts else place % len(text)
    assert found.place == at
    assert found.chosen.id == text[at]


def test_what_is_not_there(spoken: ChatSession) -> None:
    for wanted in ("nowhere", "99", "-99"):
        with pytest.raises(InputError) as caught:
            why(spoken, wanted)
        assert "\n" not in str(caught.value)
    empty = ChatSession(spoken.model)
    with pytest.raises(InputError, match="there is no reply yet"):
        why(empty)
    empty.messages = [spoken.messages[0], {"role": "assistant", "content": ""}]
    with pytest.raises(InputError, match="the last reply has no text"):
        why(empty)


def test_a_reply_that_was_loaded_is_read_from_its_text(model: Path, store: ChatStore) -> None:
    loaded = load_model(str(model), "mlx", fetch=False)
    left = Keeper(ChatSession(loaded, sampling=SAMPLING), {"name": "tiny"}, store)
    list(left.session.reply("One"))
    written = left.session.last_exchange()
    left.session.messages[-1]["content"] = "Two"
    left.save()
    back = Keeper(ChatSession(loaded), {"name": "tiny"}, store)
    back.load(left.name)
    exchange = back.session.last_exchange()
    assert exchange.prompt == written.prompt
    assert bytes(exchange.tokens) == b"Two"
    assert len(written.tokens) == SAMPLING["max_tokens"]
    back.session.undo()
    with pytest.raises(InputError, match="there is no reply yet"):
        back.session.last_exchange()


def test_fewer_layers_are_held_of_a_long_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chat_model(tmp_path / "deep", num_hidden_layers=9)
    generator = load_model(str(path), "mlx", fetch=False).generator
    tokens = list(b"Some words of a text.")
    one = explanation.trace(generator, tokens, [0]).layers[0]
    size = one.q.nbytes + one.k.nbytes + one.v.nbytes
    for room, layers in enumerate(("layer 4", "layer 4", "layers 3 to 4", "layers 3 to 5")):
        monkeypatch.setattr(explanation, "_TRACE_BYTES", room * size)
        assert f"heads of {layers}," in choose_view(generator, tokens, len(tokens) - 1).why


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
@pytest.mark.parametrize("backend", ["mlx", "onnx"])
def test_the_table_in_the_terminal(chat: Start, model: Path, folder: Path, backend: str) -> None:
    path = model if backend == "mlx" else folder
    options = ("--backend", backend, "--max-tokens", 12, "--seed", 3, "--ignore-eos", "--offline")
    terminal = chat(path, *options, columns=120, rows=60)
    terminal.say("/why")
    assert "there is no reply yet; type a message first" in terminal.lines
    terminal.say("Hello there")
    terminal.say("/why 5")
    session = ChatSession(
        load_model(str(path), backend, fetch=False),
        sampling={"max_tokens": 12, "seed": 3, "ignore_eos": True},
    )
    list(session.reply("Hello there"))
    found = why(session, "5")
    rows = [line.split() for line in terminal.lines]
    for row in found.step.top:
        wanted = [str(row.token.index), f"{row.k_norm:.2f}", f"{row.product:.3f}"]
        assert any(set(wanted) <= set(cells) for cells in rows), (wanted, terminal.text)
    for one in found.candidates:
        assert any(f"{one.logit:.2f}" in cells for cells in rows)
    assert f"layer {found.step.layer}, head {found.step.head}" in " ".join(terminal.text.split())
    assert " ".join(CAVEAT.split()) in " ".join(terminal.text.split())
    terminal.say("/why notthere")
    assert re.search(r"'notthere' does not stand in the text", terminal.text)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
def test_a_model_whose_attention_cannot_be_shown(scripted: Start) -> None:
    chat = scripted(columns=160)
    chat.say("Hello")
    chat.say("/why")
    typed = chat.lines.index("> /why")
    assert "whose attention cannot be shown" in chat.lines[typed + 1]
    assert chat.lines[typed + 2] == ">"
    chat.say("/help why")
    assert any(line.startswith("/why [WORD|N]") for line in chat.lines)
