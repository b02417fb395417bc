"""A whole decoder on each cache: with windowed layers, quantized, and as a ragged batch."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.caches.full import KVCache
from pippin.mlx_model.caches.ragged import RaggedCache
from pippin.mlx_model.caches.storage import Affine
from pippin.mlx_model.caches.window import WindowCache
from pippin.mlx_model.config import BlockConfig, ModelConfig, Norm
from pippin.mlx_model.decoder import Decoder
from pippin.mlx_model.mlx_ops import MlxOps
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps
from pippin.mlx_model.positions import RopeConfig

WINDOW, LENGTH = 7, 60
IDS = np.random.default_rng(3).integers(0, 61, LENGTH)
OPS = MlxOps(last=0)
STORAGE = Affine(bits=8, group_size=32)


def decoder(window: int | None) -> Decoder:
    """Random weights, large enough that attention is far from uniform."""
    config = ModelConfig(
        family="llama",
        vocab_size=61,
        hidden_size=48,
        heads=4,
        kv_heads=2,
        head_dim=32,
        feed_forward=40,
        context=512,
        norm=Norm(1e-5),
        blocks=(BlockConfig(RopeConfig(base=1000.0, dims=32), window),) * 3,
    )
    mx.random.seed(5)
    model = Decoder(config)
    for parameter in (block.self_attn for block in model.model.layers):
        parameter.q_proj.weight = parameter.q_proj.weight * 6
        parameter.k_proj.weight = parameter.k_proj.weight * 6
    mx.eval(model.parameters())
    return model


def exact(model: Decoder, ids: np.ndarray = IDS) -> np.ndarray:
    """float64 logits [L, V] of one call, with the mask written out."""
    caches = [NumpyCache() for _ in range(model.config.layers)]
    return model(NumpyOps(), ids[None], caches)[0]


def run(model: Decoder, ids: np.ndarray, caches: list) -> np.ndarray:
    logits = model(OPS, mx.array(ids[None], mx.int32), caches)
    mx.eval(logits, [cache.state for cache in caches])
    return np.array(logits)[0]


def assert_close(ours: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(ours - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.fixture(scope="module")
def windowed():
    model = decoder(WINDOW)
    return model, exact(model)


def window_caches(model: Decoder, margin: int) -> list[WindowCache]:
    return [WindowCache(WINDOW, margin=margin) for _ in range(model.config.layers)]


def test_the_window_matters(windowed):
    full = exact(decoder(None))
    assert np.abs(windowed[1] - full).max() > 0.1 * np.abs(full).max()


@pytest.mark.parametrize("margin", [0, 1, 5, 256])
def test_token_by_token_through_window_caches(windowed, margin):
    model, wanted = windowed
    caches = window_caches(model, margin)
    ours = [run(model, IDS[i : i + 1], caches) for i in range(LENGTH)]
    assert_close(np.concatenate(ours), wanted)


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1), max_size=8), margin=st.integers(0, 20))
def test_any_chunks_through_window_caches(windowed, cuts, margin):
    model, wanted = windowed
    caches = window_caches(model, margin)
    edges = pairwise([0, *sorted(cuts), LENGTH])
    ours = [run(model, IDS[start:end], caches) for start, end in edges]
    assert_close(np.concatenate(ours), wanted)


def test_speculation_through_window_caches_leaves_no_trace(windowed):
    model, wanted = windowed
    caches = window_caches(model, margin=8)
    ours = [run(model, IDS[:20], caches)]
    for at in range(20, LENGTH, 2):
        guess = np.concatenate([IDS[at : at + 2], [0, 0]])
        ours.append(run(model, guess, caches)[:2])
        for cache in caches:
            cache.rollback(at + 2)
    assert_close(np.concatenate(ours), wanted)


class RoundedCache(NumpyCache):
    """Keys and values as `STORAGE` would give them back."""

    def update(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().update(*(self._rounded(x) for x in (keys, values)))

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        layout = {"bits": STORAGE.bits, "group_size": STORAGE.group_size}
        parts = mx.quantize(mx.array(x.astype(np.float32)), **layout)
        return np.array(mx.dequantize(*parts, **layout), np.float64)


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("cuts", [[], [1, 2, 30, 33, 40, 41], range(1, LENGTH)])
def test_quantized_caches_equal_rounded_keys_and_values(window, cuts):
    model = decoder(window)
    rounded = [RoundedCache() for _ in range(model.config.layers)]
    wanted = model(NumpyOps(), IDS[None], rounded)[0]
    caches = [
        WindowCache(window, STORAGE, 4) if window else KVCache(STORAGE)
        for _ in range(model.config.layers)
    ]
    ours = np.concatenate([run(model, part, caches) for part in np.split(IDS, cuts)])
    # A value on the edge between two steps may round either way.
    tolerance = 0.02 * np.abs(wanted).max()
    assert np.abs(ours - wanted).max() <= tolerance
    assert np.abs(exact(model) - wanted).max() > 3 * tolerance


@pytest.mark.parametrize("window", [None, WINDOW])
def test_a_ragged_batch_equals_its_rows(window):
    model = decoder(window)
    prompts = [IDS[:3], IDS[3:30], IDS[10:22]]
    caches = [RaggedCache(len(prompts)) for _ in range(model.config.layers)]
    ours = [
        [run(model, prompt, [cache.row(row) for cache in caches])]
        for row, prompt in enumerate(prompts)
    ]
    for i in range(10):  # one token for each row at once
        tokens = mx.array(IDS[[i, i + 7, i + 20]][:, None], mx.int32)
        logits = model(OPS, tokens, caches)
        mx.eval(logits)
        for row in range(3):
            ours[row].append(np.array(logits)[row])
    for row, (prompt, first) in enumerate(zip(prompts, [0, 7, 20], strict=True)):
        wanted = exact(model, np.concatenate([prompt, IDS[first : first + 10]]))
        assert_close(np.concatenate(ours[row]), wanted)
