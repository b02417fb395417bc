"""A batch on MLX: each session says what it says alone, whoever comes and goes beside."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.batch import MlxBatch
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.config import BlockConfig
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.positions import Alibi, RopeConfig
from pippin.runtime.batch import SequentialBatch
from pippin.runtime.errors import ContextError, InputError
from support.batch_runs import ACTIONS, BatchRun, check_closed, check_full
from support.small_engine import small_engine

IDS = np.random.default_rng(3).integers(0, 61, 1100).tolist()
PLAIN = RopeConfig(base=1000.0, dims=16)
LONG = RopeConfig(base=1000.0, dims=16, scaling="dynamic", factor=2.0, switch=40)
# The blocks, and what steps them.
KINDS = {
    "rope": ((BlockConfig(PLAIN), BlockConfig(PLAIN)), MlxBatch),
    "window": ((BlockConfig(PLAIN, 9), BlockConfig(PLAIN)), MlxBatch),
    "alibi": ((BlockConfig(Alibi((0.5, 0.1))), BlockConfig(None)), MlxBatch),
    "dynamic": ((BlockConfig(LONG), BlockConfig(LONG)), SequentialBatch),
}


@pytest.fixture(scope="module", params=KINDS)
def case(request):
    """An engine and the batch it is to open."""
    blocks, kind = KINDS[request.param]
    return small_engine(*blocks), kind


@pytest.fixture(scope="module")
def engine():
    return small_engine(*KINDS["window"][0])


@settings(max_examples=8, deadline=None)
@given(actions=ACTIONS, slots=st.integers(1, 5))
def test_whoever_comes_and_goes_each_says_what_it_says_alone(case, actions, slots):
    engine, kind = case
    run = BatchRun(engine, slots, 1e-4)
    assert type(run.batch) is kind
    run.act("open", 0)
    for action in actions:
        run.act(*action)


def test_rooms_grow_while_others_are_open(engine):
    run = BatchRun(engine, 3, 1e-4, capacity=256)
    for length in (200, 255, 0):
        run.act("open", 0)
        for session in run.pairs[-1]:
            session.prefill(IDS[:length]) if length else None
    sizes = set()
    for token in IDS[:70]:
        run.step(run.pairs, [token] * 3)
        sizes.add(run.batch.caches[0].buffers.arrays[0].shape)
    assert sizes == {(3, 1, 256, 16), (3, 1, 512, 16)}


def test_all_slots_taken(case):
    engine, kind = case
    check_full(engine, kind)


def test_a_closed_session_is_not_used_again(case):
    engine, kind = case
    check_closed(engine, kind)


def test_what_a_step_refuses_changes_nothing(engine):
    batch = engine.open_batch(2, 8)
    full, other = batch.open(), batch.open()
    full.prefill(IDS[: engine.info.context])
    for tokens, error in (([1, 2], ContextError), ([61, 1], InputError), ([1], ValueError)):
        with pytest.raises(error):
            batch.step([other, full], tokens)
        assert (other.length, full.length) == (0, engine.info.context)
    assert batch.step([other], [1]).shape == (1, 61)


def test_memory_is_asked_for_all_slots(engine, monkeypatch):
    have = 4 * 256 * engine.info.kv_bytes_per_token
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: have)
    with pytest.raises(InputError, match=r"257 tokens in each of 4 slots: .* needed"):
        engine.open_batch(4, 257)
    batch = engine.open_batch(4, 256)
    session = batch.open()
    session.prefill(IDS[:256])
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: 100)
    with pytest.raises(InputError, match="512 tokens in each of 4 slots"):
        session.prefill([1])
    with pytest.raises(InputError, match="512 tokens in each of 4 slots"):
        batch.step([session], [1])
    assert session.length == 256


def test_a_saved_session_of_a_batch_is_restored(engine, tmp_path):
    batch = engine.open_batch(2, 8)
    batch.open()
    session = batch.open()
    session.prefill(IDS[:300])
    session.save(tmp_path / "cache", IDS[:300])
    restored, tokens = engine.restore(tmp_path / "cache")
    assert tokens == IDS[:300]
    for token in IDS[:3]:
        wanted = np.array(session.step(token))
        assert np.abs(np.array(restored.step(token)) - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_keys_and_values(tiny_factory, bits):
    decoder = load_decoder(open_checkpoint(tiny_factory(head_dim=32).path), mx.float32)
    # A key that lies between two codes may be rounded to either; one of them moves the logits.
    run = BatchRun(MlxEngine(decoder, "tiny", "0", bits), 3, {8: 2e-3, 4: 2e-2}[bits])
    assert type(run.batch) is MlxBatch
    for length in (3, 40, 17):
        run.act("open", 0)
        for session in run.pairs[-1]:
            session.prefill(IDS[:length])
    for start in range(8):
        run.step(run.pairs[:: 1 + start % 2], IDS[start : start + 3 - start % 2])
