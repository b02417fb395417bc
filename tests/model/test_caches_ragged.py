"""A ragged batch answers for each of its rows as a cache of that row alone would."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.caches.ragged import RaggedCache
from support.token_history import SPEC, STORAGES, History, assert_same, random_tokens

STEPS = st.lists(
    st.tuples(st.just("all"), st.sampled_from([1, 1, 2, 5]))
    | st.tuples(st.just("row"), st.integers(1, 40))
    | st.tuples(st.just("row"), st.sampled_from([255, 256, 257]))
    | st.tuples(st.just("rollback"), st.integers(0, 60))
    | st.tuples(st.sampled_from(["swap", "copy"]), st.integers(1, 3))
    | st.tuples(st.just("some"), st.integers(1, 3)),
    min_size=2,
    max_size=12,
)


def append_all(cache, rows, length, seed):
    append_some(cache, cache, rows, length, seed)


def append_some(cache, part, rows, length, seed):
    """To the rows that `part` of the cache stands for."""
    q, k, v = random_tokens(seed, length, batch=len(rows))
    out = part.attend(q, k, v, rows[0].spec)
    mx.eval(out, cache.state)
    for i, history in enumerate(rows):
        one = slice(i, i + 1)
        history.append(k[one], v[one])
        assert_same(out[one], history.attend(q[one]))


def append_row(cache, history, index, length, seed):
    row = cache.row(index)
    q, k, v = random_tokens(seed, length)
    assert row.offset == row.length
    out = row.attend(q, k, v, history.spec)
    mx.eval(out, row.state)
    history.append(k, v)
    assert_same(out, history.attend(q))


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=20, deadline=None)
@given(steps=STEPS, rows=st.integers(1, 4), window=st.none() | st.integers(1, 30))
def test_each_row_is_a_list_of_tokens(storage, steps, rows, window):
    spec = replace(SPEC, window=window)
    cache = RaggedCache(rows, STORAGES[storage])
    histories = [History(spec, STORAGES[storage]) for _ in range(rows)]
    for seed, (kind, number) in enumerate(steps):
        index = seed % len(histories)
        other = (index + number) % len(histories)
        if kind == "all":
            append_all(cache, histories, number, seed)
        elif kind == "some":
            chosen = histories[index : index + number]
            append_some(cache, cache.some(index, len(chosen)), chosen, 1, seed)
        elif kind == "row":
            append_row(cache, histories[index], index, number, seed)
        elif kind == "rollback":
            length = max(cache.lengths[index] - number, 0)
            cache.row(index).rollback(length)
            histories[index].rollback(length)
        elif kind == "copy":
            cache.copy_row(index, other)
            histories[other] = histories[index].fork()
        else:
            cache.swap_rows(index, other)
            histories[index], histories[other] = histories[other], histories[index]
        assert cache.lengths == [len(history.keys) for history in histories]
        np.testing.assert_array_equal(np.array(cache.offset), cache.lengths)


def test_rollback_outside_a_row_is_refused():
    cache = RaggedCache(2)
    cache.append(*random_tokens(0, 4, batch=2)[1:])
    cache.row(0).rollback(2)
    with pytest.raises(ValueError, match="from 2 tokens to 3"):
        cache.row(0).rollback(3)
    assert cache.lengths == [2, 4]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_of_another_size_is_refused(batch):
    cache = RaggedCache(2)
    with pytest.raises(ValueError, match=f"{batch} rows do not fit a batch of 2"):
        cache.append(*random_tokens(0, 1, batch=batch)[1:])
    assert cache.lengths == [0, 0]
