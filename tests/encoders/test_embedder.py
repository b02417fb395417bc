"""Texts to vectors on both backends: tiny models, and the real MiniLM against transformers."""

import json

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.export.encoder_folder import export_encoder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.embedder import MlxEmbedder
from pippin.runtime.errors import InputError
from pippin.runtime.ort_embedder import OrtEmbedder
from pippin.runtime.recipe import Recipe
from support.encoders import write_word_tokenizer
from support.wheels import minilm_folder

TEXTS = [
    "The cat sits outside.",
    "A man is playing guitar.",
    "The new movie is awesome, and much longer than I thought it would be.",
    "",
    "Die Katze sitzt draußen — 猫は外に座っている。",
    "The movie was great! " * 80,  # longer than the model takes
]


@pytest.fixture(scope="module")
def words(encoder, tmp_path_factory):
    """A checkpoint with a tokenizer and a recipe of its own."""
    folder = tmp_path_factory.mktemp("words")
    stack = encoder("mpnet")
    for file in stack.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_word_tokenizer(folder, stack.vocab_size)
    recipe = Recipe(("cls", "mean"), normalize=True, max_length=12)
    for name, content in recipe.files(48, 160).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def embedders(words, tmp_path_factory):
    checkpoint = open_checkpoint(words)
    out = export_encoder(checkpoint, tmp_path_factory.mktemp("out") / "words")
    return {
        "mlx": MlxEmbedder(checkpoint),
        "onnx": OrtEmbedder.from_folder(out, threads=1),
    }


@pytest.mark.parametrize("backend", ["mlx", "onnx"])
def test_vectors_do_not_depend_on_the_other_texts(backend, embedders):
    embedder = embedders[backend]
    random = np.random.default_rng(0)
    texts = [
        " ".join(f"w{word}" for word in random.integers(3, 61, length))
        for length in random.integers(0, 30, 70)
    ]
    seen = []
    vectors = embedder.embed(texts, lambda done, total: seen.append((done, total)))
    assert vectors.shape == (70, 96)
    assert vectors.dtype == np.float32
    assert seen[-1] == (70, 70)
    alone = np.concatenate([embedder.embed([text]) for text in texts])
    np.testing.assert_allclose(vectors, alone, atol=1e-6)
    assert embedder.embed([]).shape == (0, 96)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(st.text(), max_size=5))
def test_both_backends_say_the_same_of_any_text(embedders, texts):
    mlx, onnx = embedders["mlx"], embedders["onnx"]
    assert [mlx.tokens(text) for text in texts] == [onnx.tokens(text) for text in texts]
    np.testing.assert_allclose(mlx.embed(texts), onnx.embed(texts), atol=1e-5)


def test_long_texts_are_cut_between_their_marks(embedders, words, tmp_path):
    text = " ".join(f"w{index}" for index in range(3, 60))
    assert embedders["onnx"].tokens(text) == [1, *range(3, 13), 2]
    for file in words.rglob("*"):
        if file.is_file():
            target = tmp_path / "left" / file.relative_to(words)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    limits = tmp_path / "left" / "tokenizer_config.json"
    limits.write_text(json.dumps({"truncation_side": "left"}))
    embedder = MlxEmbedder(open_checkpoint(tmp_path / "left"))
    assert embedder.tokens(text) == [1, *range(50, 60), 2]


def test_half_a_surrogate_is_refused(embedders):
    with pytest.raises(InputError, match="tokenizer cannot encode"):
        embedders["onnx"].embed(["a\ud800"])


def test_a_tokenizer_that_does_not_fit_is_refused(words, copied, encoder):
    folder = copied(encoder("mpnet"))
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        MlxEmbedder(open_checkpoint(folder))
    write_word_tokenizer(folder, 62)
    with pytest.raises(InputError, match="has id 61, the model has 61 tokens"):
        MlxEmbedder(open_checkpoint(folder))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        MlxEmbedder(open_checkpoint(folder))


@pytest.fixture(scope="module")
def minilm():
    return open_checkpoint(minilm_folder())


@pytest.fixture(scope="module")
def theirs():
    """The vectors of TEXTS by transformers' BertModel and the mean that the model's card shows."""
    folder = minilm_folder()
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).numpy()


def worst_similarity(vectors: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(vectors @ vectors.T - theirs @ theirs.T).max())


def test_minilm_on_mlx_is_as_transformers(minilm, theirs):
    vectors = MlxEmbedder(minilm).embed(TEXTS)
    assert np.abs(vectors - theirs).max() <= 1e-5
    assert worst_similarity(vectors, theirs) <= 1e-5


@pytest.mark.parametrize(
    ("weights", "limit"), [("fp32", 1e-5), ("fp16", 1e-3), ("int8", 1e-2), ("q4", 0.12)]
)
def test_minilm_on_onnxruntime_is_as_transformers(weights, limit, minilm, theirs, tmp_path):
    folder = export_encoder(minilm, tmp_path / "out", weights=weights)
    embedder = OrtEmbedder.from_folder(folder, threads=1)
    assert embedder.max_length == 256
    vectors = embedder.embed(TEXTS)
    assert worst_similarity(vectors, theirs) <= limit
    np.testing.assert_allclose(
        embedder.similarity(vectors, vectors), vectors @ vectors.T, atol=1e-6
    )
