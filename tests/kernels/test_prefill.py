"""The prefill tile kernel, run by the emulator, against the float64 reference."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, KernelError, emulated, find_clang
from pippin.kernels.prefill import (
    HEAD_DIMS,
    THREADGROUP_BYTES,
    prefill_attention,
    tile_bytes,
    unsupported,
)
from pippin.kernels.reference import attention_and_lse, masked_scores
from pippin.kernels.spec import AttentionSpec
from support.attention_cases import (
    TOLERANCE,
    AttentionCase,
    assert_attention,
    assert_lse,
    attention_cases,
    build,
)
from support.prefill_bytes import tile_ranges
from support.prefill_checks import ORDERS, check_prefill

needs_clang = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
DTYPES = list(TOLERANCE)
PLAIN = AttentionSpec(4, 2, 64, 0.125)


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slopes", [False, True], ids=["", "alibi"])
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "softcap"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_type_and_feature_at_any_shape(dtype, slopes, softcap, data):
    """Right to the tolerance, and each key and value read once per tile that sees it."""
    case = data.draw(attention_cases(head_dim=64, softcap=softcap, slopes=slopes, orders=ORDERS))
    check_prefill(case, dtype)


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim(head_dim, dtype):
    spec = AttentionSpec(6, 2, head_dim, head_dim**-0.5, window=37, softcap=2.0)
    case = AttentionCase(
        spec, 2, 45, 83, sinks=True, slopes=True, starts=(0, 30), ends=(83, 71), margin=3
    )
    if unsupported(spec, dtype, head_dim, 45, 83):
        with pytest.raises(KernelError) as caught:  # the refusal is no more than the truth
            check_prefill(case, dtype)
        assert caught.value.kinds == {"memory-limit"}
        return
    assert check_prefill(case, dtype).threadgroup_bytes == tile_bytes(dtype, head_dim)


@needs_clang
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(PLAIN, 1, 100, 100),
        AttentionCase(PLAIN, 1, 1, 1),
        AttentionCase(PLAIN, 1, 70, 1),
        AttentionCase(PLAIN, 1, 3, 400),
        AttentionCase(AttentionSpec(16, 1, 64, 0.125), 1, 33, 65),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=1), 1, 40, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=71), 1, 40, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, causal=False), 1, 40, 70),
        AttentionCase(PLAIN, 5, 9, 40, starts=(0, 7, 39, 40, 20), ends=(40, 7, 40, 40, 33)),
    ],
    ids=lambda case: f"L{case.length}S{case.total}W{case.spec.window}",
)
def test_named_shapes(case):
    check_prefill(case)


@needs_clang
def test_ends_past_the_keys_and_starts_before_them_are_cut():
    case = AttentionCase(PLAIN, 2, 40, 50)
    inputs = build(case)
    with emulated():
        out = prefill_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            PLAIN,
            starts=mx.array([-3, -1000]),
            ends=mx.array([51, 5000]),
        )
    assert_attention(out, inputs.reference(PLAIN)[0])


@needs_clang
@pytest.mark.parametrize("level", [-3e4, 0.0, 3e4])
def test_scores_of_any_size_do_not_overflow(level):
    """All scores of a row are `level`: every row is the mean of the values that it sees."""
    spec = AttentionSpec(1, 1, 64, 1.0)
    v = np.random.default_rng(0).standard_normal((1, 1, 90, 64)).astype(np.float32)
    q = mx.full((1, 1, 50, 64), level / 64)
    with emulated():
        out, lse = prefill_attention(q, mx.ones(v.shape), mx.array(v), spec, lse=True)
    seen = np.tri(50, 90, 40)
    mean = seen @ v[0, 0].astype(np.float64) / seen.sum(1, keepdims=True)
    assert_attention(out[0, 0], mean)
    assert_lse(lse[0, 0], level + np.log(seen.sum(1)))


@needs_clang
@pytest.mark.parametrize("sink", [-np.inf, -1e31, 0.0, 12.0])
def test_sinks_without_mass_and_with_nearly_all(sink):
    case = AttentionCase(PLAIN, 1, 40, 50)
    inputs = build(case)
    sinks = np.full(4, sink)
    with emulated():
        out, lse = prefill_attention(
            inputs.q, inputs.k, inputs.v, PLAIN, sinks=mx.array(sinks), lse=True
        )
    wanted = attention_and_lse(*inputs.wide, PLAIN, sinks=sinks)
    error = np.abs(np.array(out) - wanted[0]) / np.abs(wanted[0]).max(-1, keepdims=True)
    assert error.max() < (2e-6 if sink <= 0 else 1e-5)  # 2^-17 is a sink's own rounding
    assert_lse(lse, wanted[1])


@needs_clang
def test_layouts_in_memory_change_nothing():
    """Heads after tokens, D before S, one key head for all sequences: the same bits."""
    rng = np.random.default_rng(0)
    q = mx.array(rng.standard_normal((2, 40, 4, 64)).astype(np.float32)).swapaxes(1, 2)
    k = mx.array(rng.standard_normal((2, 2, 64, 70)).astype(np.float32)).swapaxes(2, 3)
    v = mx.array(rng.standard_normal((1, 70, 2, 64)).astype(np.float32)).swapaxes(1, 2)
    v = mx.broadcast_to(v, k.shape)
    with emulated():
        out = prefill_attention(q, k, v, PLAIN)
        copied = prefill_attention(*map(mx.contiguous, (q, k, v)), PLAIN)
    assert mx.array_equal(out, copied)
    wide = [np.array(x, np.float64) for x in (q, k, v)]
    assert_attention(out, attention_and_lse(*wide, PLAIN)[0])


@needs_clang
def test_every_order_of_the_threads_gives_the_same_bits():
    spec = AttentionSpec(4, 2, 64, 0.125, window=20)
    inputs = build(AttentionCase(spec, 2, 40, 77), mx.float16)
    outs = []
    for seed in range(4):
        with emulated(seed=seed):
            outs.append(prefill_attention(inputs.q, inputs.k, inputs.v, spec))
    assert all(mx.array_equal(out, outs[0]) for out in outs)


@needs_clang
def test_a_window_moves_no_more_when_the_context_grows():
    spec = AttentionSpec(4, 2, 64, 0.125, window=48)
    launches = [check_prefill(AttentionCase(spec, 1, 64, total)) for total in (128, 1024)]
    assert launches[0].traffic["k"].read == launches[1].traffic["k"].read
    assert launches[1].traffic["k"].read == 4 * 2 * (48 + 31) * 64 * 4  # H, tiles, keys, D, bytes


def test_the_docstring_draws_what_is_seen_and_what_is_read():
    lines = [line.strip() for line in prefill_attention.__doc__.splitlines()]
    drawn = [line.replace("|", " ").split() for line in lines if line and set(line) <= set("01. |")]
    windowed, plain = drawn[:8], drawn[8:]
    for rows, window in ((windowed, 5), (plain, None)):
        length, total = len(rows), len(rows[0])
        spec = AttentionSpec(1, 1, 8, 1.0, window=window)
        scores = masked_scores(np.zeros((1, 1, length, 8)), np.zeros((1, 1, total, 8)), spec)[0, 0]
        ranges = tile_ranges(AttentionCase(spec, 1, length, total), queries=4)
        for i, row in enumerate(rows):
            first, stop = ranges[i // 4]
            read = [first <= j < stop for j in range(total)]
            seen = np.isfinite(scores[i])
            marks = [".01"[int(r) + int(s)] for r, s in zip(read, seen, strict=True)]
            assert row == marks


@pytest.mark.parametrize(
    ("dtype", "head_dim", "length", "total", "said"),
    [
        (mx.float32, 72, 4, 4, "head_dim 72 is not among"),
        (mx.float32, 256, 4, 4, "head_dim 256 in float32 takes 49920 bytes"),
        (mx.float16, 64, 0, 4, "nothing to compute"),
        (mx.float16, 64, 4, 0, "nothing to compute"),
    ],
)
def test_what_it_cannot_do_it_says(dtype, head_dim, length, total, said):
    spec = AttentionSpec(4, 2, head_dim, 1.0)
    assert said in unsupported(spec, dtype, head_dim, length, total)


def test_only_what_does_not_fit_is_refused():
    refused = {
        (dtype, head_dim)
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
        if unsupported(AttentionSpec(4, 2, head_dim, 1.0), dtype, head_dim, 40, 40)
    }
    assert refused == {(mx.float32, 192), (mx.float32, 256)}
    assert all(tile_bytes(*each) > THREADGROUP_BYTES for each in refused)
