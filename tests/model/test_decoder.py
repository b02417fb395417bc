"""The forward against transformers, and the float64 interpreter against both."""

import numpy as np
import pytest

from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps

TOLERANCE = 1e-4  # × max|logit|, DESIGN §9

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 6},
    "mqa": {"num_key_value_heads": 1},
    "odd sizes": {"hidden_size": 42, "intermediate_size": 71, "vocab_size": 101, "head_dim": 10},
    "one layer, one head": {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 20},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5}
    },
}


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def tiny(request, tiny_factory):
    return tiny_factory(**VARIANTS[request.param])


def ids_for(tiny, length: int) -> list[int]:
    vocab = tiny.reference.config.vocab_size
    return np.random.default_rng(length).integers(0, vocab, length).tolist()


def worst(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("length", [1, 2, 65, 300])
def test_one_call_equals_transformers(tiny, engine_of, length):
    ids = ids_for(tiny, length)
    ours = np.array(engine_of(tiny.path).open().verify(ids))
    assert worst(ours, tiny.logits(ids)) <= TOLERANCE


def test_token_by_token_equals_transformers(tiny, engine_of):
    ids = ids_for(tiny, 40)
    session = engine_of(tiny.path).open()
    ours = np.stack([np.array(session.step(token)) for token in ids])
    assert worst(ours, tiny.logits(ids)) <= TOLERANCE


def test_float64_interpreter_equals_both(tiny, engine_of):
    ids = ids_for(tiny, 130)
    engine = engine_of(tiny.path)
    caches = [NumpyCache() for _ in range(engine.decoder.config.layers)]
    first = engine.decoder(NumpyOps(), np.array([ids[:100]]), caches)[0]
    rest = engine.decoder(NumpyOps(), np.array([ids[100:]]), caches)[0]
    exact = np.concatenate([first, rest])
    assert worst(np.array(engine.open().verify(ids)), exact) <= TOLERANCE
    assert worst(tiny.logits(ids), exact) <= TOLERANCE


def test_mistral_without_window_equals_transformers(tiny_factory, engine_of):
    tiny = tiny_factory("Mistral", sliding_window=None)
    ids = ids_for(tiny, 120)
    ours = np.array(engine_of(tiny.path).open().verify(ids))
    assert worst(ours, tiny.logits(ids)) <= TOLERANCE


def test_a_batch_equals_its_rows(tiny_factory, engine_of):
    engine = engine_of(tiny_factory().path)
    batch = np.random.default_rng(0).integers(0, 97, (3, 17))
    caches = [NumpyCache() for _ in range(engine.decoder.config.layers)]
    together = engine.decoder(NumpyOps(), batch, caches)
    for row, logits in zip(batch.tolist(), together, strict=True):
        assert worst(np.array(engine.open().verify(row)), logits) <= TOLERANCE
