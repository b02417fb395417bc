"""The engine protocol on MLX: any way to the same tokens gives the same logits."""

from itertools import islice, pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model import session as session_module
from pippin.mlx_model.engine import MlxEngine
from pippin.runtime import memory
from pippin.runtime.errors import Cancelled, ContextError, InputError

IDS = np.random.default_rng(1).integers(0, 97, 400).tolist()


@pytest.fixture(scope="module")
def engine(tiny_factory, engine_of):
    return engine_of(tiny_factory().path)


@pytest.fixture(scope="module")
def expected(engine):
    return np.array(engine.open().verify(IDS))


def close(ours, reference) -> bool:
    return np.abs(np.array(ours) - reference).max() <= 1e-4 * np.abs(reference).max()


def greedy(logits, index):
    return mx.argmax(logits)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 399), max_size=6, unique=True))
def test_any_chunks_give_one_result(engine, expected, cuts):
    session = engine.open()
    edges = [0, *sorted(cuts), 400]
    for start, end in pairwise(edges):
        logits = session.prefill(IDS[start:end])
        assert close(logits, expected[end - 1])
    assert session.length == 400


def test_prefill_reports_progress_and_stops_between_chunks(engine, monkeypatch):
    monkeypatch.setattr(session_module, "_CHUNK", 64)
    seen: list[tuple[int, int]] = []
    session = engine.open()
    with pytest.raises(Cancelled):
        session.prefill(
            IDS, progress=lambda *at: seen.append(at), should_stop=lambda: len(seen) > 1
        )
    assert seen == [(64, 400), (128, 400)]
    assert session.length == 128


@settings(max_examples=20, deadline=None)
@given(ahead=st.integers(1, 300), back=st.integers(0, 300))
def test_after_rollback_as_if_never_gone_ahead(engine, expected, ahead, back):
    session = engine.open()
    session.prefill(IDS[:back] if back else IDS[:1])
    session.prefill([(token + 1) % 97 for token in IDS[:ahead][: 512 - session.length]])
    session.rollback(back)
    assert close(session.prefill(IDS[back:]), expected[-1])


def test_rollback_forward_is_refused(engine):
    session = engine.open()
    session.prefill(IDS[:5])
    with pytest.raises(ValueError, match="from 5 tokens to 6"):
        session.rollback(6)


def test_forks_do_not_see_each_other(engine, expected):
    session = engine.open()
    session.prefill(IDS[:300])
    other = session.fork()
    other.prefill([0] * 50)
    assert close(session.prefill(IDS[300:]), expected[-1])
    other.rollback(300)
    assert close(other.prefill(IDS[300:]), expected[-1])


def test_save_and_restore(engine, expected, tmp_path):
    session = engine.open()
    session.prefill(IDS[:301])
    session.save(tmp_path / "chat.kv", IDS[:301])
    restored, tokens = engine.restore(tmp_path / "chat.kv")
    assert tokens == IDS[:301]
    assert restored.length == 301
    assert close(restored.prefill(IDS[301:]), expected[-1])
    assert [p.name for p in tmp_path.iterdir()] == ["chat.kv"]


def test_a_foreign_or_damaged_cache_is_refused(engine, tiny_factory, engine_of, tmp_path):
    other = engine_of(tiny_factory(num_key_value_heads=6).path)
    session = other.open()
    session.prefill(IDS[:10])
    session.save(tmp_path / "other.kv", IDS[:10])
    with pytest.raises(InputError, match="another model"):
        engine.restore(tmp_path / "other.kv")
    whole = (tmp_path / "other.kv").read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.kv").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"cut\.kv"):
            other.restore(tmp_path / "cut.kv")


def test_decode_is_greedy_and_leaves_the_cache_at_the_last_token_but_one(engine):
    session = engine.open()
    logits = session.prefill(IDS[:20])
    stream = session.decode(logits, greedy)
    tokens = list(islice(stream, 12))
    stream.close()
    assert session.length == 20 + 11
    plain = engine.open()
    logits = plain.prefill(IDS[:20])
    for token in tokens:
        assert int(mx.argmax(logits)) == token
        logits = plain.step(token)
    assert close(session.step(tokens[-1]), np.array(logits))


def test_the_next_step_is_under_way_before_a_token_is_read(engine):
    session = engine.open()
    stream = session.decode(session.prefill(IDS[:20]), greedy)
    next(stream)
    assert session.length == 21  # the yielded token is being appended already
    stream.close()
    assert session.length == 20


def test_decode_ends_at_the_context(engine):
    session = engine.open()
    stream = session.decode(session.prefill(IDS[:400] + IDS[:108]), greedy)
    tokens = []
    with pytest.raises(ContextError, match="513 tokens do not fit the context of 512"):
        tokens.extend(stream)
    assert session.length == 512


@pytest.mark.parametrize(
    ("tokens", "said"),
    [([], "empty"), ([97], "97 is outside"), ([-1], "-1 is outside"), ([1] * 513, "513 .* 512")],
)
def test_bad_tokens_are_refused(engine, tokens, said):
    session = engine.open()
    with pytest.raises(InputError, match=said):
        session.prefill(tokens)
    assert session.length == 0


def test_what_does_not_fit_is_refused_before_it_is_allocated(engine, monkeypatch):
    session = engine.open()
    session.prefill(IDS[:10])
    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000)
    with pytest.raises(InputError, match=r"400 tokens: 1 MiB needed, 0 MiB available"):
        session.prefill(IDS[10:])
    assert session.length == 10
    with pytest.raises(InputError, match="the weights of tiny: 1 MiB needed"):
        MlxEngine(engine.decoder, "tiny", "0")


def test_memory_is_projected_before_it_is_allocated(engine):
    assert engine.memory_needed(10) == 10 * 2 * 3 * 2 * 8 * 4  # K,V × N × K × D × float32
    session = engine.open()
    session.prefill(IDS[:256])
    held = sum(array.nbytes for cache in session.caches for array in cache.state)
    assert held == engine.memory_needed(256)
    with pytest.raises(InputError, match=r"\d+ MiB needed, \d+ MiB available"):
        engine.open(10**12)
