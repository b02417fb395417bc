"""The onnxruntime engine on a small graph: any way to the same tokens gives the same logits."""

import dataclasses
import tracemalloc
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime import ort_graph
from pippin.runtime.errors import Cancelled, ContextError, InputError
from pippin.runtime.ort_engine import OrtEngine
from support.graphs import Shape, reference, write_folder

IDS = np.random.default_rng(1).integers(0, 97, 640).tolist()
CONTEXT = Shape().context

# dialect, cache dtype, whether the graph has num_logits, tolerance relative to the largest logit
KINDS = {
    "gqa": ("gqa", "float32", True, 1e-5),
    "gqa-fp16": ("gqa", "float16", True, 1e-2),
    "gqa-all-logits": ("gqa", "float32", False, 1e-5),
    "standard": ("standard", "float32", True, 1e-5),
    "standard-fp16": ("standard", "float16", False, 1e-2),
}


@dataclasses.dataclass
class Case:
    engine: OrtEngine
    logits: np.ndarray  # [640, V], float64, of the numpy decoder
    tolerance: float

    def check(self, ours: np.ndarray, end: int) -> None:
        """`ours` are the logits after `end` tokens."""
        wanted = self.logits[end - 1]
        assert np.abs(ours - wanted).max() <= self.tolerance * np.abs(wanted).max()
        if self.tolerance < 1e-3:
            assert ours.argmax() == wanted.argmax()


@pytest.fixture(scope="module")
def expected():
    return reference(Shape(), IDS)


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory, expected):
    dialect, kv, num_logits, tolerance = KINDS[request.param]
    folder = tmp_path_factory.mktemp("model")
    write_folder(folder, dialect=dialect, kv=kv, num_logits=num_logits)
    return Case(OrtEngine.from_folder(folder, threads=1), expected, tolerance)


@pytest.fixture(scope="module")
def gqa(tmp_path_factory, expected):
    folder = write_folder(tmp_path_factory.mktemp("gqa"))
    return Case(OrtEngine.from_folder(folder, threads=1), expected, 1e-5)


def test_info(case):
    info = case.engine.info
    size = 2 if case.tolerance > 1e-3 else 4
    assert (info.backend, info.vocab_size, info.context) == ("onnx", 97, CONTEXT)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * size  # layers, k and v, K, D
    assert case.engine.memory_needed(10) == 10 * info.kv_bytes_per_token


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 639), max_size=6, unique=True))
def test_any_chunks_give_one_result(case, cuts):
    session = case.engine.open()
    for start, end in pairwise([0, *sorted(cuts), 640]):
        case.check(session.prefill(IDS[start:end]), end)
        assert session.length == end


def test_token_by_token(case):
    session = case.engine.open()
    for end in range(1, 400):
        case.check(session.step(IDS[end - 1]), end)


def test_verify_gives_the_logits_of_every_token(case):
    session = case.engine.open()
    session.prefill(IDS[:7])
    logits = session.verify(IDS[7:600])
    assert logits.shape == (593, 97)
    for index, row in enumerate(logits):
        case.check(row, 8 + index)
    case.check(session.step(IDS[600]), 601)  # one row again


def test_logits_belong_to_the_caller(case):
    session = case.engine.open()
    first = session.prefill(IDS[:20])
    kept = first.copy()
    second = session.step(IDS[20])
    np.testing.assert_array_equal(first, kept)
    kept = second.copy()
    session.step(IDS[21])
    np.testing.assert_array_equal(second, kept)


@settings(max_examples=20, deadline=None)
@given(back=st.integers(0, 300), ahead=st.integers(1, 300))
def test_after_rollback_as_if_never_gone_ahead(case, back, ahead):
    session, plain = case.engine.open(), case.engine.open()
    for one in (session, plain):
        if back:
            one.prefill(IDS[:back])
    session.prefill([(token + 1) % 97 for token in IDS[:ahead]])
    session.rollback(back)
    assert session.length == back
    np.testing.assert_array_equal(
        session.prefill(IDS[back : back + 40]), plain.prefill(IDS[back : back + 40])
    )


def test_nothing_beyond_the_length_is_read(gqa):
    session = gqa.engine.open()
    session.prefill(IDS[:300])
    session.rollback(100)
    for buffer in session._caches.buffers.arrays:
        buffer[:, :, 100:] = np.nan
    gqa.check(session.prefill(IDS[100:400]), 400)


def test_rollback_forward_is_refused(case):
    session = case.engine.open()
    session.prefill(IDS[:5])
    for length in (6, -1):
        with pytest.raises(ValueError, match="from 5 tokens"):
            session.rollback(length)


def test_forks_do_not_see_each_other(case):
    session = case.engine.open()
    session.prefill(IDS[:300])
    other = session.fork()
    other.prefill([0] * 50)
    case.check(session.prefill(IDS[300:]), 640)
    other.rollback(300)
    case.check(other.prefill(IDS[300:]), 640)
    empty = case.engine.open().fork()
    case.check(empty.prefill(IDS[:3]), 3)


def test_buffers_grow_by_doubling_up_to_the_context(gqa):
    session = gqa.engine.open()
    sizes = set()
    for start in range(0, 640, 20):
        gqa.check(session.prefill(IDS[start : start + 20]), start + 20)
        sizes.add(session._caches.buffers.arrays[0].shape[2])
    assert sizes == {256, 512, CONTEXT}


def test_reserved_room_is_never_moved(gqa):
    session = gqa.engine.open(640)
    session.prefill(IDS[:1])
    places = [buffer.ctypes.data for buffer in session._caches.buffers.arrays]
    for token in IDS[1:640]:
        session.step(token)
    assert [buffer.ctypes.data for buffer in session._caches.buffers.arrays] == places


def test_the_end_of_the_context(case):
    session = case.engine.open()
    session.prefill((IDS + IDS)[:CONTEXT])
    with pytest.raises(ContextError, match="701 tokens do not fit the context of 700"):
        session.step(1)
    assert session.length == CONTEXT
    session.rollback(600)
    case.check(session.prefill(IDS[600:]), 640)
    with pytest.raises(ContextError, match=r"900 .* 700"):
        case.engine.open().prefill([1] * 900)
    with pytest.raises(ContextError, match=r"800 .* 700"):
        case.engine.open(800)


@pytest.mark.parametrize("tokens", [[], [97], [-1], [3, 1000]])
def test_unusable_tokens(gqa, tokens):
    session = gqa.engine.open()
    for call in (session.prefill, session.verify):
        with pytest.raises(InputError):
            call(tokens)
    assert session.length == 0


def test_prefill_reports_progress_and_stops_between_chunks(case):
    seen: list[tuple[int, int]] = []
    session = case.engine.open()
    with pytest.raises(Cancelled, match="512 of 640"):
        session.prefill(
            IDS, progress=lambda *at: seen.append(at), should_stop=lambda: len(seen) == 2
        )
    assert seen == [(256, 640), (512, 640)]
    assert session.length == 512
    case.check(session.prefill(IDS[512:], progress=lambda *at: seen.append(at)), 640)
    assert seen[2:] == [(128, 128)]


def greedy(logits, index):
    return logits.argmax()


def test_decode_leaves_the_cache_at_the_last_token_but_one(case):
    session = case.engine.open()
    stream = session.decode(session.prefill(IDS[:20]), greedy)
    tokens = list(islice(stream, 12))
    stream.close()
    assert session.length == 20 + 11
    logits = case.engine.open().verify([*IDS[:20], *tokens])
    assert logits[19:-1].argmax(-1).tolist() == tokens


def test_decode_numbers_its_choices_and_stops_at_the_context(gqa):
    session = gqa.engine.open()
    logits = session.prefill((IDS + IDS)[: CONTEXT - 2])
    asked = []
    stream = session.decode(logits, lambda logits, index: asked.append(index) or logits.argmax())
    assert len(list(islice(stream, 3))) == 3  # the last one needs no place in the cache
    with pytest.raises(ContextError):
        next(stream)
    assert asked == [0, 1, 2]


class CountingRuns:
    """Stands for an onnxruntime session and counts its runs."""

    def __init__(self, session):
        self._session, self.runs = session, 0

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, *arguments):
        self.runs += 1
        return self._session.run_with_iobinding(*arguments)


def test_runs_of_the_graph(tmp_path):
    engine = OrtEngine.from_folder(write_folder(tmp_path))
    counter = CountingRuns(engine._graph.session)
    engine._graph = dataclasses.replace(engine._graph, session=counter)
    session = engine.open()
    logits = session.prefill(IDS[:600])
    assert counter.runs == 3  # chunks of 256
    stream = session.decode(logits, greedy)
    list(islice(stream, 10))
    stream.close()
    assert counter.runs == 3 + 9
    session.rollback(100)
    session.fork()
    assert counter.runs == 3 + 9
    session.verify(IDS[:20])
    assert counter.runs == 3 + 9 + 1


def test_a_step_allocates_little_and_keeps_nothing(tmp_path):
    """Nothing of the size of the caches ([K, capacity, D] floats) and no growth over many steps."""
    shape = Shape(kv_heads=4, head_dim=64, layers=3)
    engine = OrtEngine.from_folder(write_folder(tmp_path, shape))
    session = engine.open(600)
    stream = session.decode(session.prefill(IDS[:200]), greedy)
    list(islice(stream, 20))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    list(islice(stream, 300))
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000
    assert peak - before < 60_000 < engine.memory_needed(600) // 6 // 5


def test_memory_is_asked_before_it_is_taken(gqa, monkeypatch):
    gib = 2**30
    have = 600 * 512 - 1
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: have)
    monkeypatch.setattr("pippin.runtime.ort_caches.available_bytes", lambda: have)
    with pytest.raises(InputError, match=r"KV cache of 600 tokens: .* needed"):
        gqa.engine.open(600)
    gqa.engine.open(599)
    session = gqa.engine.open()
    session.prefill(IDS[:500])
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: 100)
    with pytest.raises(InputError, match="KV cache"):
        session.prefill(IDS[500:])
    assert session.length == 500
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: gib)
    gqa.check(session.prefill(IDS[500:]), 640)


def test_a_model_larger_than_memory_is_not_loaded(tmp_path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setattr("pippin.runtime.memory.available_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"model\.onnx: .* needed"):
        OrtEngine.from_folder(tmp_path)


def test_save_and_restore(case, tmp_path):
    session = case.engine.open()
    session.prefill(IDS[:301])
    session.save(tmp_path / "chat.kv", IDS[:301])
    assert [file.name for file in tmp_path.iterdir()] == ["chat.kv"]
    restored, tokens = case.engine.restore(tmp_path / "chat.kv")
    assert tokens == IDS[:301]
    assert restored.length == 301
    np.testing.assert_array_equal(restored.prefill(IDS[301:400]), session.prefill(IDS[301:400]))
    restored.prefill(IDS[400:])
    restored.rollback(301)
    case.check(restored.prefill(IDS[301:]), 640)


def test_a_damaged_cache_file_is_refused(gqa, tmp_path):
    session = gqa.engine.open()
    session.prefill(IDS[:64])
    path = tmp_path / "chat.kv"
    session.save(path, IDS[:64])
    whole = path.read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"chat\.kv is no saved KV cache"):
            gqa.engine.restore(path)
    for place in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            restored, tokens = gqa.engine.restore(path)
        except InputError:
            continue
        assert tokens == IDS[:64]  # the byte means nothing to zip
        gqa.check(restored.prefill(IDS[64:100]), 100)
    path.unlink()
    with pytest.raises(InputError, match=r"chat\.kv"):
        gqa.engine.restore(path)


def test_a_cache_of_another_model_is_refused(gqa, tmp_path):
    other = OrtEngine.from_folder(write_folder(tmp_path / "other", Shape(seed=5)))
    session = other.open()
    session.prefill(IDS[:10])
    session.save(tmp_path / "other.kv", IDS[:10])
    with pytest.raises(InputError, match="another model"):
        gqa.engine.restore(tmp_path / "other.kv")


def test_saving_leaves_nothing_half_written(gqa, tmp_path, monkeypatch):
    session = gqa.engine.open()
    session.prefill(IDS[:10])
    session.save(tmp_path / "chat.kv", IDS[:10])
    good = (tmp_path / "chat.kv").read_bytes()

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array", full_disk)
    with pytest.raises(OSError, match="No space"):
        session.save(tmp_path / "chat.kv", IDS[:10])
    assert [file.name for file in tmp_path.iterdir()] == ["chat.kv"]
    assert (tmp_path / "chat.kv").read_bytes() == good
    with pytest.raises(ValueError, match="9 tokens"):
        session.save(tmp_path / "chat.kv", IDS[:9])


def test_chunk_size_changes_nothing(gqa, monkeypatch):
    for chunk in (1, 7, 128, 256):
        monkeypatch.setattr(ort_graph, "CHUNK", chunk)
        gqa.check(gqa.engine.open().prefill(IDS[:150]), 150)
