"""The decode kernel and its reduction, run by the emulator, against the float64 reference."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, emulated, find_clang
from pippin.kernels.decode import HEAD_DIMS, decode_attention, decode_plan, unsupported
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
from support.decode_checks import check_decode, key_spans, moved, plan_of

needs_clang = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
DTYPES = list(TOLERANCE)
PLAIN = AttentionSpec(4, 2, 64, 0.125)
WIDE = AttentionSpec(8, 1, 64, 0.125)


@st.composite
def decode_cases(draw, head_dim=64):
    """Any shape of up to 16 queries, any feature; S up to several splits."""
    return draw(
        attention_cases(
            head_dim=head_dim,
            softcap=draw(st.none() | st.sampled_from([1.5, 30.0])),
            slopes=draw(st.booleans()),
            max_length=16,
            max_total=draw(st.sampled_from([40, 300, 700])),
        )
    )


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40, deadline=None)
@given(case=decode_cases())
def test_every_type_at_any_shape(dtype, case):
    """Right to the tolerance, and each key and value read once for all rows of a tile."""
    check_decode(case, dtype)


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(
    ("heads", "length", "total", "window"),
    [(6, 2, 83, 37), (16, 3, 530, None)],
    ids=["one split", "three"],
)
def test_every_head_dim_with_every_feature(heads, length, total, window, head_dim, dtype):
    spec = AttentionSpec(heads, 2, head_dim, head_dim**-0.5, window=window, softcap=2.0)
    features = {"sinks": True, "slopes": True, "margin": 3}
    ragged = {"starts": (0, 30), "ends": (total, 71)}
    check_decode(AttentionCase(spec, 2, length, total, **features, **ragged), dtype)


@needs_clang
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(PLAIN, 1, 1, 1),
        AttentionCase(PLAIN, 1, 16, 1),
        AttentionCase(PLAIN, 1, 1, 2500),
        AttentionCase(AttentionSpec(16, 1, 64, 0.125), 1, 16, 40),
        AttentionCase(AttentionSpec(40, 1, 64, 0.125), 1, 1, 300),
        AttentionCase(AttentionSpec(32, 32, 64, 0.125), 1, 1, 20),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=1), 1, 5, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, window=71), 1, 5, 70),
        AttentionCase(AttentionSpec(4, 2, 64, 0.125, causal=False), 1, 16, 70),
        AttentionCase(PLAIN, 5, 9, 40, starts=(0, 7, 39, 40, 20), ends=(40, 7, 40, 40, 33)),
        AttentionCase(PLAIN, 9, 2, 300, starts=tuple(range(9)), ends=(300, 0, 9, *[200] * 6)),
    ],
    ids=lambda case: f"H{case.spec.heads}L{case.length}S{case.total}W{case.spec.window}",
)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
def test_named_shapes(case, dtype):
    check_decode(case, dtype)


@needs_clang
def test_rows_that_see_nothing_give_zero():
    """Queries before the first key, a start past the end, and nothing at all."""
    case = AttentionCase(WIDE, 3, 4, 300, starts=(0, 200, 300), ends=(2, 100, 300))
    inputs = build(case)
    with emulated():
        out, lse = decode_attention(inputs.q, inputs.k, inputs.v, WIDE, **inputs.arrays, lse=True)
    empty = np.isneginf(np.array(lse))
    assert empty[0, 0].tolist() == [True, True, False, False]
    assert empty[1:].all()
    assert (np.array(out)[empty] == 0).all()


@needs_clang
@pytest.mark.parametrize("total", [50, 600])
def test_ends_past_the_keys_and_starts_before_them_are_cut(total):
    inputs = build(AttentionCase(PLAIN, 2, 4, total))
    bounds = {"starts": mx.array([-3, -1000]), "ends": mx.array([total + 1, 5000])}
    with emulated():
        out = decode_attention(inputs.q, inputs.k, inputs.v, PLAIN, **bounds)
    assert_attention(out, inputs.reference(PLAIN)[0])


@needs_clang
@pytest.mark.parametrize("total", [90, 600])
@pytest.mark.parametrize("level", [-3e4, 0.0, 3e4])
def test_scores_of_any_size_do_not_overflow(level, total):
    """All scores of a row are `level`: every row is the mean of the values that it sees."""
    spec = AttentionSpec(1, 1, 64, 1.0)
    v = np.random.default_rng(0).standard_normal((1, 1, total, 64)).astype(np.float32)
    q = mx.full((1, 1, 9, 64), level / 64)
    with emulated():
        out, lse = decode_attention(q, mx.ones(v.shape), mx.array(v), spec, lse=True)
    seen = np.tri(9, total, total - 9)
    mean = seen @ v[0, 0].astype(np.float64) / seen.sum(1, keepdims=True)
    assert_attention(out[0, 0], mean)
    assert_lse(lse[0, 0], level + np.log(seen.sum(1)))


@needs_clang
@pytest.mark.parametrize("total", [50, 600])
@pytest.mark.parametrize("sink", [-np.inf, -1e31, 0.0, 12.0])
def test_sinks_without_mass_and_with_nearly_all(sink, total):
    inputs = build(AttentionCase(PLAIN, 1, 4, total))
    sinks = np.full(4, sink)
    with emulated():
        out, lse = decode_attention(
            inputs.q, inputs.k, inputs.v, PLAIN, sinks=mx.array(sinks), lse=True
        )
    wanted = attention_and_lse(*inputs.wide, PLAIN, sinks=sinks)
    error = np.abs(np.array(out) - wanted[0]) / np.abs(wanted[0]).max(-1, keepdims=True)
    assert error.max() < (2e-6 if sink <= 0 else 1e-5)  # 2^-17 is a sink's own rounding
    assert_lse(lse, wanted[1])


@needs_clang
@pytest.mark.parametrize("total", [70, 600])
def test_layouts_in_memory_change_nothing(total):
    """Heads after tokens, D before S, one value head for all sequences, every second number of an
    option: the same bits as from copies."""
    rng = np.random.default_rng(0)
    q = mx.array(rng.standard_normal((2, 5, 4, 64)).astype(np.float32)).swapaxes(1, 2)
    k = mx.array(rng.standard_normal((2, 2, 64, total)).astype(np.float32)).swapaxes(2, 3)
    v = mx.array(rng.standard_normal((1, total, 2, 64)).astype(np.float32)).swapaxes(1, 2)
    v = mx.broadcast_to(v, k.shape)
    names = ("sinks", "slopes", "starts", "ends")
    options = [mx.arange(8) / 8, mx.arange(8) / 4, mx.array([3, 0, 9, 0]), mx.array([65, 0, 50, 0])]
    options = [array[::2] for array in options]
    with emulated():
        out = decode_attention(q, k, v, PLAIN, **dict(zip(names, options, strict=True)))
        arrays = dict(zip(names, map(mx.contiguous, options), strict=True))
        copied = decode_attention(*map(mx.contiguous, (q, k, v)), PLAIN, **arrays)
    assert mx.array_equal(out, copied)
    wide = [np.array(x, np.float64) for x in (q, k, v)]
    given_ = {name: np.array(array) for name, array in arrays.items()}
    assert_attention(out, attention_and_lse(*wide, PLAIN, **given_)[0])


@needs_clang
def test_every_order_of_the_threads_gives_the_same_bits():
    case = AttentionCase(WIDE, 2, 4, 600)
    inputs = build(case, mx.float16)
    outs = []
    for seed in range(4):
        with emulated(seed=seed):
            outs.append(decode_attention(inputs.q, inputs.k, inputs.v, WIDE, lse=True))
    assert all(mx.array_equal(a, b) for out in outs for a, b in zip(out, outs[0], strict=True))


@needs_clang
def test_a_sequence_gets_the_same_bits_in_any_batch():
    inputs = build(AttentionCase(WIDE, 5, 2, 600))
    with emulated():
        together = decode_attention(inputs.q, inputs.k, inputs.v, WIDE)
        alone = decode_attention(*(x[3:4] for x in (inputs.q, inputs.k, inputs.v)), WIDE)
    assert mx.array_equal(together[3:4], alone)


@needs_clang
def test_a_window_moves_no_more_when_the_context_grows():
    spec = AttentionSpec(4, 2, 64, 0.125, window=48)
    launches = [check_decode(AttentionCase(spec, 1, 4, total)) for total in (64, 1024)]
    assert moved(launches[0])["k"] == moved(launches[1])["k"] == 2 * (48 + 3) * 64 * 4  # K, keys, D


@needs_clang
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_group_reads_its_keys_once(dtype):
    """As many bytes for 16 heads and 4 queries as for 1 and 1, and no byte by two threadgroups."""
    for heads, length in ((1, 1), (16, 1), (8, 4)):
        spec = AttentionSpec(heads, 1, 64, 0.125, causal=False)
        launch = check_decode(AttentionCase(spec, 1, length, 600), dtype)
        for name in "kv":
            traffic = launch.traffic[name]
            assert traffic.group_read == traffic.unique_read == 600 * 64 * dtype.size
        if heads * length <= 16:  # not even one simdgroup reads what another has read
            assert launch.traffic["k"].read == 600 * 64 * dtype.size


@needs_clang
@pytest.mark.parametrize(
    ("head_dim", "dtype"), list(zip(HEAD_DIMS, [*DTYPES, *DTYPES], strict=True)), ids=str
)
def test_threadgroup_memory(head_dim, dtype):
    """The queries of a tile, the sums that simdgroups exchange, and the maxima and masses."""
    spec = AttentionSpec(16, 1, head_dim, head_dim**-0.5)
    launch = check_decode(AttentionCase(spec, 1, 16, 9), dtype)
    rows = plan_of(AttentionCase(spec, 1, 16, 9), dtype).rows
    blocks = 2 if head_dim <= 128 else 1
    assert launch.threadgroup_arrays == {
        "queries": rows * head_dim * dtype.size,
        "exchange": 8192,
        "tops": 512 * blocks,
    }
    assert launch.threads == 256


@pytest.mark.parametrize(
    ("heads", "length", "total", "window", "itemsize", "plan"),
    [
        (8, 1, 1, None, 2, (8, 1, 1)),
        (8, 1, 256, None, 2, (8, 1, 1)),
        (8, 1, 257, None, 2, (8, 1, 2)),
        (9, 1, 4096, None, 2, (16, 1, 16)),
        (8, 16, 4096, None, 2, (128, 1, 2)),
        (8, 16, 4096, None, 4, (64, 2, 4)),
        (16, 16, 4096, None, 2, (128, 2, 2)),
        (8, 1, 1_000_000, None, 2, (8, 1, 64)),
        (8, 1, 1_000_000, 4096, 2, (8, 1, 16)),
        (8, 2, 1_000_000, 256, 2, (16, 1, 2)),
    ],
)
def test_plans(heads, length, total, window, itemsize, plan):
    spec = AttentionSpec(heads, 1, 64, 0.125, window=window)
    found = decode_plan(spec, length, total, itemsize)
    assert (found.rows, found.tiles, found.splits) == plan


def test_the_docstring_draws_what_is_seen_and_what_is_read():
    lines = [line.split("   ") for line in decode_attention.__doc__.splitlines()]
    drawn = [line[-1].strip() for line in lines if line[-1].strip().startswith(". ")]
    spec = AttentionSpec(2, 1, 8, 1.0, window=4)
    scores = masked_scores(np.zeros((1, 2, 3, 8)), np.zeros((1, 1, 9, 8)), spec)[0]
    ((first, stop),) = key_spans(AttentionCase(spec, 1, 3, 9))
    assert len(drawn) == 6
    for row, seen in zip(drawn, np.isfinite(scores).reshape(6, 9), strict=True):
        marks = ["01"[int(s)] if first <= j < stop else "." for j, s in enumerate(seen)]
        assert row.replace("|", " ").split() == marks
        assert [part.count("0") + part.count("1") for part in row.split("|")] == [0, 3, 3, 0]


@pytest.mark.parametrize(
    ("head_dim", "length", "total", "said"),
    [
        (72, 4, 4, "head_dim 72 is not among"),
        (64, 17, 40, "17 queries are more than 16"),
        (64, 0, 4, "nothing to compute"),
        (64, 4, 0, "nothing to compute"),
    ],
)
def test_what_it_cannot_do_it_says(head_dim, length, total, said):
    spec = AttentionSpec(4, 2, head_dim, 1.0)
    assert said in unsupported(spec, mx.float16, head_dim, length, total)


def test_nothing_else_is_refused():
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            for length in range(1, 17):
                assert unsupported(PLAIN, dtype, head_dim, length, 1) is None
