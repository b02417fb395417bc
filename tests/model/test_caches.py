"""The full and the window cache, in every storage, against tokens kept in plain lists."""

import gc
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.caches.full import KVCache
from pippin.mlx_model.caches.storage import PLAIN, Affine
from pippin.mlx_model.caches.window import WindowCache
from support.token_history import SPEC, STORAGES, History, assert_same, random_tokens

TOKEN_BYTES = {  # of K heads' keys and values; the layout of `mx.quantize` for the packed ones
    "plain": 2 * 2 * 32 * 4,
    "4 bits": 2 * 2 * (32 * 4 // 8 + 8),
    "8 bits": 2 * 2 * (32 + 8),
}
STEPS = st.lists(
    st.tuples(st.just("append"), st.sampled_from([1, 1, 1, 2, 5, 40]) | st.integers(1, 90))
    | st.tuples(st.just("rollback"), st.integers(0, 12))
    | st.tuples(st.just("rollback to"), st.integers(0, 200))
    | st.tuples(st.just("fork"), st.just(0)),
    min_size=2,
    max_size=14,
)

MAKE = pytest.mark.parametrize(
    "make", [KVCache, lambda storage: WindowCache(9, storage, 4)], ids=["full", "window"]
)


class Trial:
    """A cache and the history it should stand for."""

    def __init__(self, cache: KVCache, history: History, furthest: int = 0):
        self.cache, self.history, self.furthest = cache, history, furthest

    def append(self, length: int, seed: int) -> None:
        q, k, v = random_tokens(seed, length)
        out = self.cache.attend(q, k, v, self.history.spec)
        mx.eval(out, self.cache.state)
        self.history.append(k, v)
        self.furthest = max(self.furthest, self.cache.length)
        assert_same(out, self.history.attend(q))

    def rollback(self, length: int) -> None:
        if 0 < length < self.cache.earliest:
            with pytest.raises(ValueError, match="are gone"):
                self.cache.rollback(length)
            return
        self.cache.rollback(length)
        self.history.rollback(length)

    def fork(self) -> "Trial":
        return Trial(self.cache.fork(), self.history.fork(), self.furthest)

    def check(self) -> None:
        assert self.cache.length == len(self.history.keys)


def play(first: Trial, steps: list[tuple[str, int]], check) -> None:
    """Each step on the trial after the last one's, so that forks go on beside their originals."""
    trials = [first]
    for index, (kind, number) in enumerate(steps):
        trial = trials[index % len(trials)]
        length = trial.cache.length
        if kind == "append":
            trial.append(number, index)
        elif kind == "rollback":
            trial.rollback(max(length - number, 0))
        elif kind == "rollback to":
            trial.rollback(min(number, length))
        elif len(trials) < 3:
            trials.append(trial.fork())
        for each in trials:
            each.check()
            check(each)


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_the_full_cache_is_a_list_of_tokens(storage, steps):
    def check(trial):
        assert trial.cache.earliest == 0

    history = History(storage=STORAGES[storage])
    play(Trial(KVCache(STORAGES[storage]), history), steps, check)


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, window=st.integers(1, 30), margin=st.integers(0, 20), data=st.data())
def test_the_window_cache_answers_as_if_it_held_every_token(storage, steps, window, margin, data):
    # A layer may look back less far than its cache reaches.
    spec = replace(SPEC, window=window - data.draw(st.integers(0, window - 1) | st.just(0)))

    def check(trial):
        assert trial.cache.earliest <= max(trial.furthest - margin // 2, 0)
        held = sum(array.nbytes for array in trial.cache.state)
        assert held <= (window + margin) * TOKEN_BYTES[storage]

    cache = WindowCache(window, STORAGES[storage], margin)
    play(Trial(cache, History(spec, STORAGES[storage])), steps, check)


@pytest.mark.parametrize("storage", STORAGES)
def test_after_a_wrap_rollback_is_right_or_refused(storage):
    spec = replace(SPEC, window=8)
    trial = Trial(WindowCache(8, STORAGES[storage], margin=6), History(spec, STORAGES[storage]))
    for seed in range(50):
        trial.append(1, seed)
    assert trial.cache.earliest > 8
    trial.rollback(47)  # three tokens: what the margin promises
    trial.append(2, 90)
    with pytest.raises(ValueError, match=r"from 49 tokens to 20: .* reaches back to token 13"):
        trial.cache.rollback(20)
    trial.append(3, 91)  # a refusal has changed nothing
    trial.rollback(0)
    trial.append(30, 92)


@pytest.mark.parametrize("window", [1, 9])
@pytest.mark.parametrize("margin", [0, 1, 6])
@pytest.mark.parametrize("chunks", [[1] * 5, [1] * 18, [4] * 7, [40], [1, 40, 1]], ids=str)
def test_the_earliest_length_is_one_it_can_go_on_from(window, margin, chunks):
    """The W − 1 keys before it are held, and it is no later than the margin promises."""
    trial = Trial(WindowCache(window, margin=margin), History(replace(SPEC, window=window)))
    for seed, length in enumerate(chunks):
        trial.append(length, seed)
    assert trial.cache.earliest <= max(sum(chunks) - margin // 2, 0)
    trial.rollback(trial.cache.earliest)
    trial.append(2, 99)


@pytest.mark.parametrize("length", [-1, 6])
@pytest.mark.parametrize("cache", [KVCache(), WindowCache(3)], ids=["full", "window"])
def test_rollback_outside_the_tokens_is_refused(cache, length):
    cache.rollback(0)
    cache.append(*random_tokens(0, 5)[1:])
    with pytest.raises(ValueError, match=f"from 5 tokens to {length}"):
        cache.rollback(length)


@pytest.mark.parametrize("window", [None, 8, 9])
def test_a_layer_that_looks_back_past_the_window_is_refused(window):
    cache = WindowCache(7)
    with pytest.raises(ValueError, match="window of 7"):
        cache.attend(*random_tokens(0, 3), replace(SPEC, window=window))
    assert cache.length == 0


@MAKE
@pytest.mark.parametrize("storage", STORAGES)
def test_forks_do_not_see_each_other(make, storage):
    first = Trial(make(STORAGES[storage]), History(replace(SPEC, window=9), STORAGES[storage]))
    first.append(5, 0)
    second = first.fork()
    for seed in range(12):
        first.append(1, seed)
        second.append(2, 100 + seed)


@pytest.mark.parametrize("added", [1, 3, 50])
def test_attention_is_given_no_more_than_the_window(added):
    cache = WindowCache(9, margin=4)
    for seed in range(20):
        before = cache.length
        keys, values = cache.append(*random_tokens(seed, added)[1:])
        assert keys.shape == values.shape == (1, 2, min(before, 8) + added, 32)


@MAKE
@pytest.mark.parametrize("storage", STORAGES)
def test_a_loaded_cache_goes_on_as_the_saved_one(make, storage, tmp_path):
    spec = replace(SPEC, window=9)
    trial = Trial(make(STORAGES[storage]), History(spec, STORAGES[storage]))
    for seed, length in enumerate([20, 1, 1, 1]):
        trial.append(length, seed)
    mx.save_safetensors(str(tmp_path / "a.safetensors"), trial.cache.saved())
    other = make(STORAGES[storage])
    other.load(mx.load(str(tmp_path / "a.safetensors")))
    assert other.earliest == trial.cache.earliest
    loaded = Trial(other, trial.history.fork())
    for seed, length in enumerate([1, 1, 5, 30]):
        loaded.append(length, seed)
        trial.append(length, seed)
    loaded.rollback(loaded.cache.length - 2)
    loaded.append(1, 7)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_long_run_holds_the_window_alone(storage):
    """In bytes that MLX has allocated: a view could hold on to more than it shows."""
    cache = WindowCache(64, STORAGES[storage], margin=32)
    spec = replace(SPEC, window=64)
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    for seed, length in enumerate([700, *[1] * 100, 300, *[1] * 50]):
        out = cache.attend(*random_tokens(seed, length), spec)
        mx.eval(out, cache.state)
        del out
        mx.synchronize()
        allocated = mx.get_active_memory() - before
        assert allocated <= 2 * (64 + 32) * TOKEN_BYTES[storage]
    assert cache.length == 1150


def test_quantized_prefill_peaks_below_the_plain_one():
    peaks = {}
    for name, storage in STORAGES.items():
        cache = KVCache(storage)
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        for seed in range(8):
            mx.eval(cache.attend(*random_tokens(seed, 256), SPEC), cache.state)
        peaks[name] = mx.get_peak_memory() - before
        del cache
    assert peaks["4 bits"] < peaks["8 bits"] < peaks["plain"]


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (Affine(4, 64), "32 values does not divide"),
        (Affine(3, 32), "3 bits"),
        (Affine(4, 16), "16"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(storage, said):
    with pytest.raises(ValueError, match=said):
        KVCache(storage).append(*random_tokens(0, 2)[1:])


@pytest.mark.parametrize(("window", "margin"), [(0, 8), (4, -1)])
def test_impossible_windows_are_refused(window, margin):
    with pytest.raises(ValueError, match="impossible"):
        WindowCache(window, PLAIN, margin)
