"""Attention on the device at hand against the float64 reference and the drawn masks."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.kernels.dispatch import attention
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
    np.testing.assert_allclose(np.array(out), wanted, atol=2e-6)
    np.testing.assert_allclose(np.array(lse), wanted_lse, atol=1e-5)
    np.testing.assert_allclose(np.array(attention(*ours, spec, **given_)), wanted, atol=2e-6)


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
