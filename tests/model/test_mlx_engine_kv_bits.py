"""The engine protocol on MLX with a quantized KV cache."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps
from pippin.runtime.errors import InputError

IDS = np.random.default_rng(1).integers(0, 97, 300).tolist()
# A key that lies between two codes may be rounded to either; one of them moves the logits.
TOLERANCE = {8: 2e-3, 4: 2e-2}  # of the largest logit


class RoundedCache(NumpyCache):
    """Keys and values as the affine layout can hold them: minimum to maximum in 2^bits levels."""

    def __init__(self, bits: int, group_size: int) -> None:
        super().__init__()
        self._layout = {"bits": bits, "group_size": group_size}

    def update(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().update(self._rounded(keys), self._rounded(values))

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        parts = mx.quantize(mx.array(x.astype(np.float32)), **self._layout)
        return np.array(mx.dequantize(*parts, **self._layout)).astype(np.float64)


class Case:
    """An engine of `bits`, and what it says of IDS in one call, float32 [L, V]."""

    def __init__(self, path, bits: int) -> None:
        checkpoint = open_checkpoint(path)
        self.decoder = load_decoder(checkpoint, mx.float32)
        self.bits, self.fingerprint = bits, checkpoint.fingerprint
        self.engine = MlxEngine(self.decoder, "tiny", self.fingerprint, bits)
        self.expected = np.array(self.engine.open().verify(IDS))

    def close(self, ours, wanted: np.ndarray) -> bool:
        return np.abs(np.array(ours) - wanted).max() <= TOLERANCE[self.bits] * np.abs(wanted).max()


@pytest.fixture(scope="module", params=[8, 4])
def case(tiny_factory, request):
    return Case(tiny_factory(head_dim=32).path, request.param)


def held(session) -> int:
    return sum(array.nbytes for cache in session.caches for array in cache.state)


def test_logits_are_those_of_rounded_keys_and_values(case):
    caches = [RoundedCache(case.bits, 32) for _ in range(case.decoder.config.layers)]
    wanted = case.decoder(NumpyOps(), np.array([IDS]), caches)[0]
    plain = MlxEngine(case.decoder, "tiny", case.fingerprint).open().verify(IDS)
    assert case.close(case.expected, wanted)
    assert not case.close(plain, wanted)


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, 299), max_size=5, unique=True))
def test_any_chunks_give_one_result(case, cuts):
    session = case.engine.open()
    for start, end in pairwise([0, *sorted(cuts), 300]):
        assert case.close(session.prefill(IDS[start:end]), case.expected[end - 1])
    assert session.length == 300


@settings(max_examples=10, deadline=None)
@given(ahead=st.integers(1, 200), back=st.integers(1, 299))
def test_after_rollback_as_if_never_gone_ahead(case, ahead, back):
    session = case.engine.open()
    session.prefill(IDS[:back])
    session.prefill([(token + 1) % 97 for token in IDS[:ahead]])
    session.rollback(back)
    assert case.close(session.prefill(IDS[back:]), case.expected[-1])


def test_forks_do_not_see_each_other(case):
    session = case.engine.open()
    session.prefill(IDS[:200])
    other = session.fork()
    other.prefill([0] * 50)
    assert case.close(session.prefill(IDS[200:]), case.expected[-1])
    other.rollback(200)
    assert case.close(other.prefill(IDS[200:]), case.expected[-1])


def test_save_and_restore(case, tmp_path):
    session = case.engine.open()
    session.prefill(IDS[:201])
    session.save(tmp_path / "chat.kv", IDS[:201])
    restored, tokens = case.engine.restore(tmp_path / "chat.kv")
    assert (tokens, restored.length) == (IDS[:201], 201)
    assert case.close(restored.prefill(IDS[201:]), case.expected[-1])


def test_a_cache_of_another_storage_is_refused(case, tmp_path):
    others = [
        MlxEngine(case.decoder, "tiny", case.fingerprint, bits)
        for bits in {None, 4, 8} - {case.bits}
    ]
    engines = [case.engine, *others]
    for index, engine in enumerate(engines):
        session = engine.open()
        session.prefill(IDS[:10])
        session.save(tmp_path / f"{index}.kv", IDS[:10])
    for index, engine in enumerate(engines):
        for file in {0, 1, 2} - {index}:
            with pytest.raises(InputError, match="another model, backend or kind of cache"):
                engine.restore(tmp_path / f"{file}.kv")


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "bits", "groups"), [(32, 8, 1), (64, 4, 1), (96, 8, 3), (128, 4, 2)]
)
def test_bytes_are_those_of_words_scales_and_biases(tiny_factory, dtype, head_dim, bits, groups):
    checkpoint = open_checkpoint(tiny_factory(head_dim=head_dim).path)
    engine = MlxEngine(load_decoder(checkpoint, dtype), "tiny", "0", bits)
    session = engine.open()
    session.prefill(IDS[:256])  # the step by which buffers grow
    assert held(session) == engine.memory_needed(256)
    # K and V × N × K × (words, and a scale and a bias a group)
    wanted = 2 * 3 * 2 * (head_dim * bits // 8 + 2 * groups * dtype.size)
    assert engine.info.kv_bytes_per_token == wanted


@pytest.mark.parametrize("head_dim", [8, 80])
def test_heads_that_cannot_be_packed_are_refused(tiny_factory, head_dim):
    checkpoint = open_checkpoint(tiny_factory(head_dim=head_dim).path)
    with pytest.raises(InputError, match=f"head_dim is {head_dim}, .* groups of 32"):
        MlxEngine.from_checkpoint(checkpoint, "tiny", kv_bits=8)


@pytest.mark.parametrize("bits", [0, 5, 16, "8"])
def test_other_bits_are_refused(tiny_factory, bits):
    checkpoint = open_checkpoint(tiny_factory(head_dim=32).path)
    with pytest.raises(InputError, match="it takes 4 or 8"):
        MlxEngine.from_checkpoint(checkpoint, "tiny", kv_bits=bits)
