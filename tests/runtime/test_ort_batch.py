"""A batch on onnxruntime: each session says what it says alone, whoever comes and goes beside."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime.batch import SequentialBatch, Slots
from pippin.runtime.errors import ContextError, InputError
from pippin.runtime.ort_batch import OrtBatch
from pippin.runtime.ort_engine import OrtEngine
from support.batch_runs import ACTIONS, BatchRun, check_closed, check_full
from support.graphs import Shape, reference, write_folder

IDS = np.random.default_rng(1).integers(0, 97, 640).tolist()
CONTEXT = Shape().context
# dialect, cache dtype, whether the graph has num_logits, what steps it, tolerance
KINDS = {
    "gqa": ("gqa", "float32", True, OrtBatch, 1e-5),
    "gqa-fp16": ("gqa", "float16", True, OrtBatch, 1e-2),
    "gqa-all-logits": ("gqa", "float32", False, OrtBatch, 1e-5),
    "standard": ("standard", "float32", True, SequentialBatch, 1e-5),
}


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """An engine, the batch it is to open and the tolerance."""
    dialect, kv, num_logits, kind, tolerance = KINDS[request.param]
    folder = tmp_path_factory.mktemp("model")
    write_folder(folder, dialect=dialect, kv=kv, num_logits=num_logits)
    return OrtEngine.from_folder(folder, threads=1), kind, tolerance


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return OrtEngine.from_folder(write_folder(tmp_path_factory.mktemp("gqa")), threads=1)


def opened(batch, *lengths):
    """Sessions of a batch that hold so many of IDS."""
    sessions = [batch.open() for _ in lengths]
    for session, length in zip(sessions, lengths, strict=True):
        if length:
            session.prefill(IDS[:length])
    return sessions


@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS, slots=st.integers(1, 6))
def test_whoever_comes_and_goes_each_says_what_it_says_alone(case, actions, slots):
    engine, kind, tolerance = case
    run = BatchRun(engine, slots, tolerance)
    assert type(run.batch) is kind
    run.act("open", 0)
    for action in actions:
        run.act(*action)


def test_a_batch_says_what_the_reference_says(case):
    engine, _, tolerance = case
    wanted = reference(Shape(), IDS)
    batch = engine.open_batch(4, 16)
    lengths = [0, 250, 3, 31]
    sessions = opened(batch, *lengths)
    for step in range(12):
        rows = batch.step(sessions, [IDS[length + step] for length in lengths])
        for row, length in zip(rows, lengths, strict=True):
            right = wanted[length + step]
            assert np.abs(row - right).max() <= tolerance * np.abs(right).max()


def test_rooms_grow_while_others_are_open(engine):
    run = BatchRun(engine, 3, 1e-5, capacity=256)
    for _ in range(3):
        run.act("open", 0)
    for pair, length in zip(run.pairs, (200, 255, 10), strict=True):
        for session in pair:
            session.prefill(IDS[:length])
    sizes = set()
    for token in IDS[:300]:
        run.step(run.pairs, [token] * 3)
        sizes.add(run.batch._buffers.arrays[0].shape)
    assert sizes == {(3, 2, 256, 16), (3, 2, 512, 16), (3, 2, CONTEXT, 16)}


def test_a_prompt_between_two_steps_disturbs_nobody(engine):
    run = BatchRun(engine, 3, 1e-5)
    for _ in range(3):
        run.act("open", 0)
    for place in range(20):  # one of three is at its prompt
        for session in run.pairs[1]:
            session.prefill(IDS[10 * place : 10 * place + 10])
        run.step([run.pairs[2], run.pairs[0]], IDS[place : place + 2])
    run.step(run.pairs, [1, 2, 3])


def test_all_slots_taken(case):
    engine, kind, _ = case
    check_full(engine, kind)


def test_a_closed_session_is_not_used_again(case):
    engine, kind, _ = case
    check_closed(engine, kind)


def test_what_a_step_refuses_changes_nothing(case):
    engine, _, _ = case
    batch = engine.open_batch(3, 8)
    full, other = opened(batch, 640, 5)
    full.prefill(IDS[: CONTEXT - 640])
    stranger = engine.open_batch(3, 8).open()
    for sessions, tokens, error in (
        ([other, full], [1, 2], ContextError),
        ([other], [97], InputError),
        ([other], [-1], InputError),
        ([other, other], [1, 2], ValueError),
        ([other, stranger], [1, 2], ValueError),
        ([other, engine.open()], [1, 2], ValueError),
        ([other], [1, 2], ValueError),
        ([], [], ValueError),
    ):
        with pytest.raises(error):
            batch.step(sessions, tokens)
        assert (other.length, full.length) == (5, CONTEXT)
    assert batch.step([other], [1]).shape == (1, 97)


@pytest.mark.parametrize(
    ("slots", "capacity"), [(0, 8), (-1, 8), (2, 0), (2, CONTEXT + 1)], ids=str
)
def test_impossible_batches(case, slots, capacity):
    with pytest.raises(InputError):
        case[0].open_batch(slots, capacity)


def test_memory_is_asked_for_all_slots(engine, monkeypatch):
    per_token = engine.info.kv_bytes_per_token
    have = 4 * 256 * per_token
    for module in ("memory", "ort_caches"):
        monkeypatch.setattr(f"pippin.runtime.{module}.available_bytes", lambda: have)
    with pytest.raises(InputError, match=r"257 tokens in each of 4 slots: .* needed"):
        engine.open_batch(4, 257)
    batch = engine.open_batch(4, 256)
    sessions = opened(batch, 256, 0)
    for module in ("memory", "ort_caches"):
        monkeypatch.setattr(f"pippin.runtime.{module}.available_bytes", lambda: 100)
    with pytest.raises(InputError, match="KV cache"):
        batch.step(sessions, [1, 2])
    assert [session.length for session in sessions] == [256, 0]
    batch.step(sessions[1:], [1])


def test_sequences_rotated_by_their_own_lengths_step_one_by_one(engine):
    graph = dataclasses.replace(engine._graph, rope_switch=40)
    other = object.__new__(OrtEngine)
    other._graph, other.info = graph, engine.info
    assert type(other.open_batch(2, 8)) is SequentialBatch


def test_a_saved_session_of_a_batch_is_restored(engine, tmp_path):
    batch = engine.open_batch(2, 8)
    _, session = opened(batch, 5, 100)
    session.save(tmp_path / "chat.kv", IDS[:100])
    restored, tokens = engine.restore(tmp_path / "chat.kv")
    assert tokens == IDS[:100]
    np.testing.assert_array_equal(restored.prefill(IDS[100:130]), session.prefill(IDS[100:130]))


def test_a_step_is_one_run_and_allocates_little(tmp_path):
    """Nothing of the size of the caches or the logits, and no growth over many steps."""
    shape = Shape(kv_heads=4, head_dim=64, layers=3, vocab=4000)
    engine = OrtEngine.from_folder(write_folder(tmp_path, shape), threads=1)
    batch = engine.open_batch(8, 400)
    sessions = opened(batch, *range(20, 180, 20))
    order = [sessions[index] for index in (3, 1, 0, 7, 6, 2, 5, 4)]
    runs = []
    run = engine._graph.session.run_with_iobinding
    batch._graph = dataclasses.replace(engine._graph, session=_Counting(run, runs))
    for _ in range(10):
        batch.step(order, IDS[:8])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(150):
        batch.step(order, IDS[:8])
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(runs) == 160
    assert after - before < 60_000  # the sessions' own tokens
    assert peak - before < 100_000 < 8 * 4000 * 4


class _Counting:
    """Stands for an onnxruntime session and counts its runs."""

    def __init__(self, run, runs: list) -> None:
        self._run, self._runs = run, runs

    def run_with_iobinding(self, binding) -> None:
        self._runs.append(1)
        self._run(binding)


class Seat:
    """Stands for a session."""

    def __init__(self, length: int) -> None:
        self.slot, self.length = 0, length


class Moves:
    """What becomes of each slot when told of swaps, and how many tokens they move."""

    def __init__(self, slots: Slots, seats: list[Seat]) -> None:
        self._slots, self.tokens = slots, 0
        self.held = {seat.slot: seat for seat in seats}

    def swap(self, first: int, second: int) -> None:
        self.tokens += self._slots.length(first) + self._slots.length(second)
        held = [(second, self.held.pop(first, None)), (first, self.held.pop(second, None))]
        self.held.update((slot, seat) for slot, seat in held if seat)


@given(data=st.data(), count=st.integers(1, 8))
def test_sessions_are_gathered_where_it_moves_least(data, count):
    """No other place costs less, no session is lost and no slot held by two."""
    slots = Slots(count)
    seats = [Seat(data.draw(st.integers(0, 9))) for _ in range(data.draw(st.integers(1, count)))]
    for seat in seats:
        slots.seat(seat)
    for seat in data.draw(st.lists(st.sampled_from(seats), unique=True, max_size=len(seats) - 1)):
        slots.leave(seat)
        seats.remove(seat)
    for _ in range(3):
        chosen = data.draw(st.lists(st.sampled_from(seats), unique=True, min_size=1))
        taken, size = {seat.slot for seat in chosen}, len(chosen)
        costs = [
            sum(slots.length(slot) for slot in taken ^ set(range(first, first + size)))
            for first in range(count - size + 1)
        ]
        moves = Moves(slots, seats)
        first = slots.gather(chosen, moves.swap)
        assert moves.tokens == min(costs)
        assert sorted(seat.slot for seat in chosen) == list(range(first, first + size))
        assert moves.held == {seat.slot: seat for seat in seats}
