"""Traces of every family on both engines against transformers' eager attention."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pippin.apps.insight import attention
from pippin.apps.insight.trace import trace
from support.families import ROWS, Subject

# One for each thing that families do to scores, to queries and to keys; the rest is slow.
QUICK = {
    "llama",
    "llama-rope-llama3",
    "llama-rope-longrope",
    "mistral-window",
    "qwen3",
    "gemma2",
    "gemma3-text",
    "phi3-longrope-partial",
    "gpt-oss",
    "gpt2",
    "gptj",
    "bloom",
    "falcon-grouped",
    "cohere2",
}
CASES = [
    pytest.param(row, id=row.name, marks=[] if row.name in QUICK else pytest.mark.slow)
    for row in ROWS
    if row.name != "falcon-alibi"  # transformers adds it twice (`tiny.reference_model`)
]
TOLERANCE = 1e-5
PRECISION = 1.5e-6  # of the largest score: stretched random heads are sharper than any real one


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module")
def theirs(subject: Subject) -> list[np.ndarray]:
    return weights(subject, reference(subject))


def reference(subject: Subject) -> Any:
    model = subject.tiny.reference
    if subject.row.kind == "Falcon":  # which it is, is decided when it is made
        model = type(model).from_pretrained(subject.tiny.path, attn_implementation="eager").eval()
    return model


def weights(subject: Subject, model: Any) -> list[np.ndarray]:
    """Those of each layer, [H, S, S], by transformers."""
    import torch

    with torch.inference_mode():
        if subject.row.grows:
            model(torch.tensor([subject.ids(1)]))  # forgets a longer sequence's rotation
        ids = torch.tensor([ids_of(subject)])
        return [layer[0].numpy() for layer in model(ids, output_attentions=True).attentions]


def ids_of(subject: Subject) -> list[int]:
    return subject.ids(max(subject.row.lengths))


def test_every_name_is_a_row() -> None:
    assert {row.name for row in ROWS} >= QUICK


def test_weights_of_every_layer(subject: Subject, theirs: list[np.ndarray]) -> None:
    for engine in ("mlx", *subject.row.dialects):
        run = subject.mlx if engine == "mlx" else subject.onnx(engine)
        found = trace(SimpleNamespace(engine=run), ids_of(subject))
        assert list(found.layers) == list(range(len(theirs)))
        for layer, wanted in zip(found.layers.values(), theirs, strict=True):
            error = np.abs(attention.weights(layer, range(wanted.shape[-1])) - wanted).max()
            largest = max(np.abs(scores(block)).max() for block in attention.blocks(layer))
            print(f"{engine}, layer {layer.layer}: {error:.1e}, scores up to {largest:.0f}")
            assert error <= max(TOLERANCE, PRECISION * largest)


def scores(block: attention.Block) -> np.ndarray:
    """Those of keys that are seen."""
    return block.scores[np.isfinite(block.scores)]
