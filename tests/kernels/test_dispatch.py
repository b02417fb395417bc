"""Attention on the device at hand against the float64 reference and the drawn masks."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.attention_calls import CALLS
from pippin.kernels import dispatch
from pippin.kernels.dispatch import MODES, TABLE, VARIABLE, attention, choose, quantized_attention
from pippin.kernels.reference import attention_and_lse
from pippin.kernels.spec import AttentionSpec

# (L, S, W): what each query sees, as drawn in `AttentionSpec`
GRIDS = {
    (2, 5, None): [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
    (5, 2, None): [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]],
    (2, 5, 2): [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]],
}


def random_qkv(heads, kv_heads, length, total, head_dim, batch=1):
    rng = np.random.default_rng(length * 1000 + total)
    q = rng.standard_normal((batch, heads, length, head_dim))
    k, v = rng.standard_normal((2, batch, kv_heads, total, head_dim))
    return q, k, v


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_the_reference(data):
    """Every feature, ragged batches and rows that see nothing among them."""
    draw = data.draw
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    length, total = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    head_dim, batch = draw(st.sampled_from([2, 8, 64])), draw(st.integers(1, 3))
    heads, causal = kv_heads * group, draw(st.booleans())
    window = draw(st.none() | st.integers(1, 80)) if causal else None
    softcap = draw(st.none() | st.sampled_from([1.0, 30.0]))
    spec = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, causal, window, softcap)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = {
        "sinks": rng.standard_normal(heads).astype(np.float32),
        "slopes": 2.0 ** -np.arange(1, heads + 1, dtype=np.float32),
        "starts": rng.integers(0, total, batch, dtype=np.int32),
        "ends": rng.integers(0, total + 1, batch, dtype=np.int32),
    }
    used = {name: array for name, array in arrays.items() if draw(st.booleans())}
    q, k, v = random_qkv(heads, kv_heads, length, total, head_dim, batch)
    given_ = {name: mx.array(array) for name, array in used.items()}
    ours = [mx.array(x.astype(np.float32)) for x in (q, k, v)]
    out, lse = attention(*ours, spec, **given_, lse=True)
    wanted, wanted_lse = attention_and_lse(q, k, v, spec, **used)
    # Sums in MLX's own order: 2.5e-6 has been seen.
    np.testing.assert_allclose(np.array(out), wanted, atol=5e-6)
    np.testing.assert_allclose(np.array(lse), wanted_lse, atol=1e-5)
    np.testing.assert_allclose(np.array(attention(*ours, spec, **given_)), wanted, atol=5e-6)


def test_an_array_that_attention_does_not_know_is_refused():
    q = mx.zeros((1, 2, 1, 64))
    with pytest.raises(TypeError, match="takes no 'sink'"):
        attention(q, q, q, AttentionSpec(2, 2, 64, 0.125), sink=mx.zeros(2))


@pytest.mark.parametrize("shape", GRIDS)
def test_the_drawn_masks(shape):
    """Each row averages exactly the values that its grid row marks; an empty row gives 0."""
    length, total, window = shape
    spec = AttentionSpec(1, 1, 8, 1.0, window=window)
    q, k = mx.zeros((1, 1, length, 8)), mx.zeros((1, 1, total, 8))
    v = mx.eye(8)[:total][None, None]
    grid = np.array(GRIDS[shape], dtype=float)
    mass = grid.sum(axis=1, keepdims=True)
    wanted = np.divide(grid, mass, out=np.zeros_like(grid), where=mass > 0)
    np.testing.assert_allclose(
        np.array(attention(q, k, v, spec))[0, 0, :, :total], wanted, atol=1e-7
    )


@pytest.mark.parametrize(
    ("q", "k", "said"),
    [
        ((2, 4, 8), (1, 2, 4, 8), "4-d"),
        ((1, 3, 4, 8), (1, 2, 4, 8), "does not fit"),
        ((1, 4, 4, 16), (1, 2, 4, 16), "does not fit"),
        ((2, 4, 4, 8), (1, 2, 4, 8), "does not fit"),
        ((1, 4, 0, 8), (1, 2, 4, 8), "0 queries and 4 keys"),
        ((1, 4, 4, 8), (1, 2, 0, 8), "4 queries and 0 keys"),
    ],
)
def test_wrong_shapes_are_refused_before_any_launch(q, k, said):
    spec = AttentionSpec(4, 2, 8, 1.0)
    with pytest.raises(ValueError, match=said):
        attention(mx.zeros(q), mx.zeros(k), mx.zeros(k), spec)


def test_heads_that_do_not_divide_are_refused():
    spec = AttentionSpec(3, 2, 8, 1.0)
    with pytest.raises(ValueError, match="no multiple"):
        attention(mx.zeros((1, 3, 4, 8)), mx.zeros((1, 2, 4, 8)), mx.zeros((1, 2, 4, 8)), spec)


SPEC = AttentionSpec(32, 8, 128, 0.0884)
WINDOW = AttentionSpec(32, 8, 128, 0.0884, window=100)


@pytest.mark.parametrize(
    ("spec", "length", "total", "options", "name"),
    [
        (SPEC, 1, 4096, {}, "mlx"),
        (SPEC, 8, 4096, {}, "mlx"),
        (SPEC, 9, 4096, {}, "decode"),
        (SPEC, 16, 4096, {}, "decode"),
        (SPEC, 17, 4096, {}, "mlx"),
        (AttentionSpec(8, 8, 128, 0.0884), 12, 4096, {}, "mlx"),
        (AttentionSpec(32, 4, 128, 0.0884), 4, 4096, {}, "mlx"),
        (AttentionSpec(32, 4, 128, 0.0884), 5, 4096, {}, "decode"),
        (WINDOW, 1, 100, {}, "mlx"),
        (WINDOW, 1, 101, {}, "decode"),
        (WINDOW, 17, 101, {}, "prefill"),
        (AttentionSpec(32, 8, 128, 0.0884, softcap=9.0), 1, 5, {}, "decode"),
        (SPEC, 40, 39, {}, "prefill"),
        (SPEC, 40, 40, {}, "mlx"),
        (AttentionSpec(32, 8, 128, 0.0884, causal=False), 40, 39, {}, "mlx"),
        (SPEC, 1, 40, {"bare": False}, "decode"),
        (SPEC, 1, 40, {"quantized": True}, "decode"),
        (SPEC, 100, 400, {"quantized": True}, "prefill"),
        (SPEC, 0, 40, {"bare": False}, "fallback"),
        (SPEC, 4, 0, {}, "fallback"),
        (AttentionSpec(32, 8, 72, 0.1, window=9), 1, 40, {}, "fallback"),
        (AttentionSpec(32, 8, 72, 0.1), 12, 40, {}, "mlx"),
    ],
)
def test_the_choice_on_metal(spec, length, total, options, name):
    choice = choose(spec, mx.float16, length, total, metal=True, mode="auto", **options)
    assert choice.name == name
    assert choice.reason


def test_a_kernel_that_cannot_says_why():
    spec = AttentionSpec(4, 2, 256, 0.0625, window=9)
    choice = choose(spec, mx.float32, 40, 400, metal=True, mode="auto")
    assert choice.name == "fallback"
    assert choice.reason.startswith("head_dim 256 in float32 takes 49920 bytes")


def test_without_metal_no_kernel_is_chosen():
    for call in CALLS:
        choice = call.choice(metal=False, mode="auto")
        assert choice.name in ("mlx", "fallback")
        assert choice.name == "mlx" or choice.reason.startswith("no Metal device")


def test_either_side_can_be_forced():
    for call in CALLS:
        assert call.choice(metal=True, mode="mlx").name in ("mlx", "fallback")
        forced = call.choice(metal=False, mode="kernels")
        assert forced.name != "mlx"
        assert forced.name != "fallback" or "head_dim" in forced.reason


def test_every_row_of_the_table_is_somebodys():
    """Each row is the reason of a call in CALLS, with Metal or without."""
    reasons = {call.choice(metal=metal, mode="auto").reason for call in CALLS for metal in (0, 1)}
    for rule in TABLE:
        assert any(reason.endswith(rule.reason) for reason in reasons), rule


def test_the_variable_is_read_at_each_call(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    plain = choose(SPEC, mx.float16, 1, 10, metal=True)
    monkeypatch.setenv(VARIABLE, "kernels")
    assert (plain.name, choose(SPEC, mx.float16, 1, 10).name) == ("mlx", "decode")
    monkeypatch.setenv(VARIABLE, "")
    assert choose(SPEC, mx.float16, 1, 10, metal=True) == plain
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match=f"{VARIABLE} is 'fast'; it takes {', '.join(MODES)}"):
        choose(SPEC, mx.float16, 1, 10)


@pytest.mark.parametrize("length", [3, 20])
@pytest.mark.parametrize("bits", [None, 4])
def test_arguments_reach_the_chosen_kernel(monkeypatch, length, bits):
    """What the table names is called, once, with what the caller gave."""
    monkeypatch.setenv(VARIABLE, "kernels")
    calls = []
    name = "decode" if length == 3 else "prefill"
    functions = dispatch.QUANTIZED if bits else dispatch.ATTENTION
    monkeypatch.setitem(functions, name, lambda *args, **options: calls.append((args, options)))
    spec = AttentionSpec(4, 2, 64, 0.125)
    q, k = mx.zeros((1, 4, length, 64)), mx.zeros((1, 2, 30, 64))
    ends = mx.array([29])
    if bits:
        k = tuple(mx.quantize(k, 32, bits))
        quantized_attention(q, k, k, spec, bits=bits, group_size=32, ends=ends, lse=True)
    else:
        attention(q, k, k, spec, ends=ends, lse=True)
    ((args, options),) = calls
    assert args[0] is q
    assert args[1] is args[2] is k
    assert args[3] is spec
    assert options.pop("lse") is True
    assert options.pop("ends") is ends
    layout = {"bits": bits, "group_size": 32} if bits else {}
    assert options == layout
