"""Sessions where caches alone do not know enough: deep rollbacks past a window, longrope."""

import mlx.core as mx
import numpy as np
import pytest

from pippin.mlx_model.caches.window import MARGIN
from pippin.mlx_model.config import BlockConfig
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.positions import RopeConfig
from support.small_engine import small_engine

WINDOW, SWITCH = 9, 40
IDS = np.random.default_rng(3).integers(0, 61, 700).tolist()
PLAIN = RopeConfig(base=1000.0, dims=16)
LONG = RopeConfig(
    base=1000.0,
    dims=16,
    scaling="custom",
    factors=(1.0,) * 8,
    long_factors=(1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.0, 4.0),
    switch=SWITCH,
)


@pytest.fixture(scope="module")
def windowed() -> MlxEngine:
    return small_engine(BlockConfig(PLAIN, WINDOW), BlockConfig(PLAIN))


@pytest.fixture(scope="module")
def long() -> MlxEngine:
    return small_engine(BlockConfig(LONG), BlockConfig(LONG))


def fresh(engine: MlxEngine, ids: list[int]) -> np.ndarray:
    return np.array(engine.open().prefill(ids))


def assert_close(ours, wanted) -> None:
    assert np.abs(np.array(ours) - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("length", [1, 100, 699 - MARGIN, 690, 700])
def test_a_rollback_of_any_depth_leaves_no_trace(windowed, length):
    session = windowed.open()
    session.prefill(IDS)
    session.rollback(length)
    assert session.length == length
    assert_close(session.step(7), fresh(windowed, [*IDS[:length], 7]))


def test_windowed_layers_hold_the_window_alone(windowed):
    session = windowed.open()
    session.prefill(IDS)
    held = sum(array.nbytes for cache in session.caches for array in cache.state)
    row = 2 * 16 * 4  # K and V × D × float32
    assert windowed.memory_needed(700) == (700 + WINDOW + MARGIN) * row
    assert held <= (768 + WINDOW + MARGIN) * row  # buffers grow in steps of 256 tokens


def test_a_fork_and_a_saved_session_know_their_tokens(windowed, tmp_path):
    session = windowed.open()
    session.prefill(IDS)
    session.save(tmp_path / "cache", IDS)
    restored, tokens = windowed.restore(tmp_path / "cache")
    assert tokens == IDS
    for other in (session.fork(), restored):
        other.rollback(50)
        assert_close(other.step(7), fresh(windowed, [*IDS[:50], 7]))


def test_longrope_matters(long):
    other = small_engine(*[BlockConfig(LONG.at(1))] * 2)
    wanted = fresh(long, IDS[: SWITCH + 1])
    assert np.abs(fresh(other, IDS[: SWITCH + 1]) - wanted).max() > 0.01 * np.abs(wanted).max()
    assert_close(fresh(other, IDS[:SWITCH]), fresh(long, IDS[:SWITCH]))


@pytest.mark.parametrize("cuts", [[SWITCH], [10, SWITCH + 1], range(1, 60), [SWITCH - 1, 50]])
def test_crossing_the_switch_in_any_pieces(long, cuts):
    session = long.open()
    for part in np.split(np.array(IDS[:60]), cuts):
        logits = session.prefill(part.tolist())
        assert_close(logits, fresh(long, IDS[: session.length]))


def test_back_over_the_switch(long):
    session = long.open()
    session.prefill(IDS[:60])
    session.rollback(20)
    assert_close(session.step(7), fresh(long, [*IDS[:20], 7]))


def test_decoding_over_the_switch(long):
    session = long.open()
    logits = session.prefill(IDS[: SWITCH - 3])
    tokens = []
    for token in session.decode(logits, lambda logits, _: mx.argmax(logits)):
        tokens.append(token)
        if len(tokens) == 8:
            break
    for count in range(8):
        wanted = fresh(long, [*IDS[: SWITCH - 3], *tokens[:count]])
        assert tokens[count] == int(wanted.argmax())
    assert session.length == SWITCH - 3 + 7
    assert_close(session.step(7), fresh(long, [*IDS[: SWITCH - 3], *tokens[:7], 7]))
