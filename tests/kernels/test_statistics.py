"""Attention statistics, by the kernels in the emulator and by MLX's operations, against float64."""

import gc
import re

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, emulated, find_clang
from pippin.kernels import statistics_fallback as fallback_module
from pippin.kernels.dispatch import attention
from pippin.kernels.prefill import HEAD_DIMS, tile_bytes
from pippin.kernels.reference import masked_scores
from pippin.kernels.spec import AttentionSpec
from pippin.kernels.statistics import Statistics, attention_statistics, metal_statistics
from support.attention_cases import TOLERANCE, AttentionCase, attention_cases, build
from support.prefill_bytes import tile_ranges
from support.statistics_checks import (
    assert_statistics,
    by_kernels,
    check_statistics,
    check_ties,
    key_tile_ranges,
    problem_of,
)

needs_clang = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
DTYPES = list(TOLERANCE)
ORDERS = ("BKSD", "BSKD", "BKDS")
PLAIN = AttentionSpec(4, 2, 64, 0.125)
FULL = AttentionSpec(6, 2, 64, 0.125, window=37, softcap=1.5)


BOTH = pytest.mark.parametrize(
    "statistics",
    [pytest.param(by_kernels, marks=needs_clang), attention_statistics],
    ids=["kernels", "fallback"],
)


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "softcap"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), slopes=st.booleans())
def test_kernels_equal_the_reference_at_any_shape(dtype, softcap, data, slopes):
    """Right, and each query and key read once per tile that needs it."""
    case = data.draw(attention_cases(head_dim=64, softcap=softcap, slopes=slopes, orders=ORDERS))
    check_statistics(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    case=attention_cases(head_dim=64, slopes=True) | attention_cases(head_dim=8, softcap=1.5),
    top_k=st.integers(1, 16),
    held=st.sampled_from([1, 1000, 1 << 22]),
)
def test_fallback_equals_the_reference_at_any_shape(dtype, case, top_k, held):
    problem = problem_of(case, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback_module, "_SCORES", held)
        got = attention_statistics(
            problem.inputs.q,
            problem.inputs.k,
            problem.lse,
            case.spec,
            top_k=top_k,
            **problem.arrays,
        )
    assert_statistics(got, problem, top_k)


@needs_clang
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    list(zip(HEAD_DIMS, [*DTYPES, mx.float32, mx.float16, mx.bfloat16], strict=True)),
    ids=str,
)
def test_every_head_dim(head_dim, dtype):
    spec = AttentionSpec(6, 2, head_dim, head_dim**-0.5, window=37, softcap=2.0)
    case = AttentionCase(
        spec, 2, 45, 83, sinks=True, slopes=True, starts=(0, 30), ends=(83, 71), margin=3
    )
    for launch in check_statistics(case, dtype):
        assert launch.threadgroup_bytes == tile_bytes(dtype, head_dim)


@needs_clang
@pytest.mark.parametrize("top_k", [1, 2, 16])
def test_any_number_of_top_keys(top_k):
    check_statistics(AttentionCase(FULL, 1, 40, 70, slopes=True), top_k=top_k)


@needs_clang
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(PLAIN, 1, 1, 1),
        AttentionCase(PLAIN, 1, 70, 1),
        AttentionCase(PLAIN, 1, 100, 3),
        AttentionCase(PLAIN, 1, 3, 400),
        AttentionCase(AttentionSpec(16, 1, 64, 0.125), 1, 33, 65),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=1), 1, 40, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=71), 1, 40, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, causal=False), 1, 40, 70, slopes=True),
        AttentionCase(PLAIN, 5, 9, 40, starts=(0, 7, 39, 40, 20), ends=(40, 7, 40, 40, 33)),
    ],
    ids=lambda case: f"L{case.length}S{case.total}W{case.spec.window}",
)
def test_named_shapes(case):
    check_statistics(case)


@BOTH
def test_of_equal_weights_the_lower_key_is_first(statistics):
    check_ties(statistics)


@BOTH
def test_rows_that_see_nothing_give_nothing(statistics):
    case = AttentionCase(PLAIN, 3, 40, 20, starts=(0, 5, 20), ends=(20, 5, 20))
    problem = problem_of(case)
    got = statistics(problem.inputs.q, problem.inputs.k, problem.lse, PLAIN, **problem.arrays)
    mass, entropy, ids, weights = map(np.array, got)
    nothing = np.isneginf(np.array(problem.lse))
    assert nothing[0].sum() == 4 * 20
    assert nothing[1:].all()
    assert not entropy[nothing].any()
    assert (ids[nothing] == -1).all()
    assert not weights[nothing].any()
    assert not mass[1:].any()
    assert (ids[~nothing][:, 0] >= 0).all()


@BOTH
def test_from_the_log_sum_exp_of_attention_the_mass_is_all(statistics):
    inputs = build(AttentionCase(FULL, 2, 50, 80))
    _, lse = attention(inputs.q, inputs.k, inputs.v, FULL, lse=True)
    got = statistics(inputs.q, inputs.k, lse, FULL)
    np.testing.assert_allclose(np.array(got.mass).sum(axis=-1), 50, rtol=2e-6)


@BOTH
def test_with_sinks_the_entropy_is_that_of_the_keys_share(statistics):
    """As the docstring says: what is left of the distribution is the sink's."""
    inputs = build(AttentionCase(PLAIN, 1, 33, 50, sinks=True))
    _, lse = attention(inputs.q, inputs.k, inputs.v, PLAIN, sinks=inputs.arrays["sinks"], lse=True)
    got = statistics(inputs.q, inputs.k, lse, PLAIN)
    scores = masked_scores(*inputs.wide[:2], PLAIN)
    sinks = np.broadcast_to(np.array(inputs.arrays["sinks"])[:, None, None], (1, 4, 33, 1))
    scores = np.concatenate([scores, sinks], axis=-1)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    whole = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
    rest = weights[..., -1]
    np.testing.assert_allclose(
        np.array(got.entropy), whole + rest * np.log(rest), atol=2e-5, rtol=2e-5
    )
    assert (rest > 0.01).any()
    np.testing.assert_allclose(np.array(got.mass).sum(axis=-1), (1 - rest).sum(axis=-1), rtol=5e-6)


@needs_clang
def test_ends_past_the_keys_and_starts_before_them_are_cut():
    inputs = build(AttentionCase(PLAIN, 2, 40, 50))
    lse = mx.array(inputs.reference(PLAIN)[1].astype(np.float32))
    bounds = {"starts": mx.array([-3, -1000]), "ends": mx.array([51, 5000])}
    cut = by_kernels(inputs.q, inputs.k, lse, PLAIN, **bounds)
    plain = by_kernels(inputs.q, inputs.k, lse, PLAIN)
    assert all(mx.array_equal(a, b) for a, b in zip(cut, plain, strict=True))


@needs_clang
def test_layouts_in_memory_change_nothing():
    """Heads after tokens, D before S, log-sum-exps apart: the same bits."""
    rng = np.random.default_rng(0)
    q = mx.array(rng.standard_normal((2, 40, 4, 64)).astype(np.float32)).swapaxes(1, 2)
    k = mx.array(rng.standard_normal((1, 2, 64, 70)).astype(np.float32)).swapaxes(2, 3)
    k = mx.broadcast_to(k, (2, 2, 70, 64))
    lse = attention(q, k, k, PLAIN, lse=True)[1]
    apart = mx.array(np.array(lse).transpose(2, 0, 1)).transpose(1, 2, 0)
    strided = by_kernels(q, k, apart, PLAIN)
    copied = by_kernels(*map(mx.contiguous, (q, k, lse)), PLAIN)
    assert all(mx.array_equal(a, b) for a, b in zip(strided, copied, strict=True))


@needs_clang
def test_every_order_of_the_threads_gives_the_same_bits():
    problem = problem_of(AttentionCase(FULL, 2, 40, 77), mx.float16)
    q, k = problem.inputs.q, problem.inputs.k
    runs = [by_kernels(q, k, problem.lse, FULL, seed=seed) for seed in range(4)]
    for run in runs[1:]:
        assert all(mx.array_equal(a, b) for a, b in zip(run, runs[0], strict=True))


@needs_clang
def test_a_window_moves_no_more_when_the_context_grows():
    spec = AttentionSpec(4, 2, 64, 0.125, window=48)
    short, long = (check_statistics(AttentionCase(spec, 1, 64, total)) for total in (128, 1024))
    for before, after in zip(short, long, strict=True):
        for name in "qk":
            assert after.traffic[name].read <= before.traffic[name].read


def test_the_fallback_holds_no_scores_of_all_queries(monkeypatch):
    monkeypatch.setattr(fallback_module, "_SCORES", 1 << 16)
    spec = AttentionSpec(8, 4, 32, 32**-0.5)
    q, k = mx.random.normal((1, 8, 256, 32)), mx.random.normal((1, 4, 2048, 32))
    lse = attention(q, k, k, spec, lse=True)[1]
    mx.eval(q, k, lse)
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(attention_statistics(q, k, lse, spec, top_k=2))
    assert mx.get_peak_memory() - before < 8 * 256 * 2048 * 4 / 3


def test_the_docstring_draws_what_each_tile_reads():
    lines = [line.strip() for line in metal_statistics.__doc__.splitlines()]
    drawn = [re.split(" {3,}", line) for line in lines if line and set(line) <= set("01. |")]
    halves = zip(*drawn, strict=True)
    by_query, by_key = ([half.replace("|", " ").split() for half in rows] for rows in halves)
    spec = AttentionSpec(1, 1, 8, 1.0, window=3)
    case = AttentionCase(spec, 1, 4, 7)
    seen = np.isfinite(masked_scores(np.zeros((1, 1, 4, 8)), np.zeros((1, 1, 7, 8)), spec))[0, 0]
    row_ranges, key_ranges = tile_ranges(case, queries=2), key_tile_ranges(case, keys=2)
    for i, j in np.ndindex(4, 7):
        first, stop = row_ranges[i // 2]
        assert by_query[i][j] == (str(int(seen[i, j])) if first <= j < stop else ".")
        _, first, stop = key_ranges[j // 2]
        assert by_key[i][j] == (str(int(seen[i, j])) if first <= i < stop else ".")


GOOD = {
    "q": mx.zeros((1, 4, 3, 64)),
    "k": mx.zeros((1, 2, 5, 64)),
    "lse": mx.zeros((1, 4, 3)),
    "spec": PLAIN,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q": mx.zeros((4, 3, 64))}, "4-d"),
        ({"k": mx.zeros((1, 3, 5, 64))}, "does not fit"),
        ({"k": mx.zeros((1, 2, 5, 64), mx.float16)}, "one float type"),
        ({"lse": mx.zeros((1, 4, 4))}, "lse is"),
        ({"lse": mx.zeros((1, 4, 3), mx.float16)}, "lse is"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 17}, "top_k is 17"),
        ({"k": mx.zeros((1, 2, 0, 64))}, "0 keys"),
        ({"q": mx.zeros((1, 4, 0, 64)), "lse": mx.zeros((1, 4, 0))}, "0 queries"),
        ({"slopes": mx.zeros((2,))}, "slopes is"),
        ({"ends": mx.array([1, 2])}, "ends is"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_launch(changes, said):
    with pytest.raises(ValueError, match=said) as error:
        attention_statistics(**{**GOOD, **changes})
    assert "\n" not in str(error.value)


def test_fields_have_their_shapes_and_types():
    got = attention_statistics(**GOOD)
    assert isinstance(got, Statistics)
    shapes = [(1, 4, 5), (1, 4, 3), (1, 4, 3, 8), (1, 4, 3, 8)]
    assert [x.shape for x in got] == shapes
    assert [x.dtype for x in got] == [mx.float32, mx.float32, mx.int32, mx.float32]


@needs_clang
def test_the_variable_forces_either(monkeypatch):
    """PIPPIN_ATTENTION is that of `dispatch`."""
    launched = {}
    for mode in ("mlx", "kernels"):
        monkeypatch.setenv("PIPPIN_ATTENTION", mode)
        with emulated() as report:
            mx.eval(attention_statistics(**GOOD))
        launched[mode] = [launch.kernel for launch in report.launches]
    assert launched == {"mlx": [], "kernels": ["query_statistics", "key_statistics"]}
