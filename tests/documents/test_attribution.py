"""Shares of attention, against the attention maps of transformers."""

from pathlib import Path

import numpy as np
import pytest

from pippin.apps.documents import attribution
from pippin.apps.documents.attribution import attribute, middle_third
from pippin.apps.models import load_generator
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.command_line import make_chat_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS = 6
PROMPT = list(b"abcdefghijklmnopqrstuvwxyz0123456789 and so on")
REPLY = list(b"first sentence. second one.")
PASSAGES = [(2, 10), (10, 26), (30, 31)]
SENTENCES = [(0, 15), (15, 27)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module", params=["mlx", "onnx"])
def generator(request, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    if request.param == "mlx":
        return load_generator(str(checkpoint), "mlx")
    folder = tmp_path_factory.mktemp("export") / "onnx"
    export_folder(open_checkpoint(checkpoint), folder, weights="fp32")
    return load_generator(str(folder))


@pytest.fixture(scope="module")
def maps(checkpoint: Path) -> np.ndarray:
    """Mean attention of the middle third of the layers, all heads: [S, S]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        found = model(torch.tensor([PROMPT + REPLY]), output_attentions=True).attentions
    return np.mean([layer[0].mean(0).numpy() for layer in found[2:4]], axis=0)


def test_shares_are_those_of_the_attention_maps(generator, maps: np.ndarray) -> None:
    found = attribute(generator, PROMPT, REPLY, PASSAGES, SENTENCES)
    assert found.layers == (2, 3)
    assert found.tokens == (8, 16, 1)
    for shares, (start, end) in zip(found.sentences, SENTENCES, strict=True):
        row = maps[len(PROMPT) + start - 1 : len(PROMPT) + end - 1].mean(0)
        wanted = [row[a:b].sum() for a, b in PASSAGES]
        inside = sum(wanted)
        np.testing.assert_allclose(shares.passages, wanted, atol=1e-5)
        np.testing.assert_allclose(shares.first, row[0], atol=1e-5)
        np.testing.assert_allclose(shares.answer, row[len(PROMPT) :].sum(), atol=1e-5)
        rest = row[1 : len(PROMPT)].sum() - inside
        np.testing.assert_allclose(shares.prompt, rest, atol=1e-5)
        whole = sum(shares.passages) + shares.first + shares.prompt + shares.answer
        assert whole == pytest.approx(1, abs=1e-5)
    mean = np.mean([one.passages for one in found.sentences], axis=0)
    np.testing.assert_allclose(found.mean.passages, mean)


def test_layers_that_do_not_fit_take_another_run(generator, monkeypatch) -> None:
    whole = attribute(generator, PROMPT, REPLY, PASSAGES, SENTENCES)
    monkeypatch.setattr(attribution, "_TRACE_BYTES", 1)
    steps = []
    parts = attribute(
        generator, PROMPT, REPLY, PASSAGES, SENTENCES, lambda done, all: steps.append((done, all))
    )
    for one, other in zip(whole.sentences, parts.sentences, strict=True):
        np.testing.assert_allclose(one.passages, other.passages, atol=1e-6)
    assert steps == [(1, 2), (2, 2)]


def test_an_answer_of_one_token(generator, maps: np.ndarray) -> None:
    found = attribute(generator, PROMPT, REPLY[:1], PASSAGES, [(0, 1)]).sentences[0]
    row = maps[len(PROMPT) - 1]
    np.testing.assert_allclose(found.passages, [row[a:b].sum() for a, b in PASSAGES], atol=1e-5)
    assert found.answer == 0


@pytest.mark.parametrize(
    ("count", "layers"), [(1, [0]), (2, [0, 1]), (3, [1]), (30, range(10, 20))]
)
def test_the_middle_third(count: int, layers: list[int]) -> None:
    assert list(middle_third(count)) == list(layers)
