"""The arithmetic under the sampler is exact: boundaries fall where the definitions put them."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.runtime import filters
from pippin.runtime.filters import UNIT

BOTH = pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])


def weights_of(xp, *parts):
    return xp.array(parts, dtype=xp.int64)


@BOTH
@settings(max_examples=200, deadline=None)
@given(total=st.integers(0, 2**61), numerator=st.integers(0, 2**32))
def test_share_is_exact(xp, total, numerator):
    found = filters.share(xp, xp.array(total, dtype=xp.int64), numerator)
    assert int(found) == total * numerator >> 32


@BOTH
def test_a_draw_on_a_boundary_takes_the_token_above(xp):
    ids, weights = weights_of(xp, 7, 3, 5), weights_of(xp, 2**39, 0, 2**39)

    def drawn(u):
        return int(filters.draw(xp, ids, weights, xp.sum(weights), u))

    assert [drawn(u) for u in (0, 2**31 - 1, 2**31, 2**32 - 1)] == [7, 7, 5, 5]


@BOTH
def test_top_p_stops_as_soon_as_p_is_reached(xp):
    weights = weights_of(xp, UNIT, UNIT, UNIT, UNIT)

    def kept(p):
        return int(xp.sum(filters.top_p(xp, weights, xp.sum(weights), p) > 0))

    assert [kept(p) for p in (1e-12, 0.25, 0.2500001, 0.5, 0.75, 0.9)] == [1, 1, 2, 2, 3, 4]


@BOTH
def test_typical_takes_the_likelier_of_equal_distances(xp):
    # two groups of mass 1/2: each lies ln 2 / 2 from the entropy
    weights = weights_of(xp, UNIT, UNIT, *[UNIT // 2] * 4)
    found = np.array(filters.typical(xp, weights, 0.4))
    assert (found > 0).tolist() == [True, True, False, False, False, False]
    assert (np.array(filters.typical(xp, weights, 0.6)) > 0).sum() == 3
    uniform = weights_of(xp, UNIT, UNIT, UNIT, UNIT)
    assert (np.array(filters.typical(xp, uniform, 0.5)) > 0).tolist() == [True, True, False, False]


@BOTH
def test_xtc_keeps_the_last_of_those_at_the_threshold(xp):
    weights = weights_of(xp, UNIT, UNIT // 2, UNIT // 4, UNIT // 4)  # 1/2, 1/4, 1/8, 1/8

    def kept(threshold):
        return np.array(filters.exclude_top(xp, weights, threshold) > 0).tolist()

    assert kept(0.51) == [True, True, True, True]
    assert kept(0.5) == [True, True, True, True]  # the only one stays
    assert kept(0.25) == [False, True, True, True]
    assert kept(0.125) == [False, False, False, True]


@BOTH
@given(weights=st.lists(st.sampled_from([0, 1, 5, UNIT // 3, UNIT]), min_size=1, max_size=30))
def test_ranks_by_weight_then_id(xp, weights):
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    for top_k in (0, 1, 3, 99):
        ids, ranked = filters.ranked(xp, weights_of(xp, *weights), xp.arange(len(weights)), top_k)
        assert np.array(ids).tolist() == order[: top_k or None]
        assert np.array(ranked).tolist() == [weights[i] for i in np.array(ids).tolist()]


@settings(max_examples=200, deadline=None)
@given(
    bits=st.lists(st.integers(0, 45), min_size=1, max_size=40),
    count=st.integers(0, 10),
    part=st.floats(0, 1),
    floor=st.one_of(st.just(0), st.integers(1, UNIT)),
)
def test_the_likeliest_suffice_and_are_the_likeliest(bits, count, part, floor):
    weights = np.array([UNIT >> b for b in bits], np.int64)
    mass = int(part * int(weights.sum()))
    count = min(count, len(bits))
    chosen = set(filters.likeliest(weights, count, mass, floor).tolist())
    others = set(range(len(bits))) - chosen
    if others:
        assert max(weights[list(others)]) < min(weights[list(chosen)], default=UNIT + 1)
    enough = len(chosen) >= count and weights[list(chosen)].sum() >= mass
    assert enough or (floor and all(weights[i] < floor for i in others))
