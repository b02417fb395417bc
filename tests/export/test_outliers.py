"""Channels that stand out: which are found; a matrix with columns for them says the same."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.export import find_outliers
from pippin.export.folder import export_folder
from pippin.export.nbits import NBits, unpack
from pippin.export.outliers import sources, with_outlier_columns
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.load import load_decoder
from support.exported import CONTEXT, store
from support.tiny import make_tiny

BLOCK, GROUPS, ROWS = 32, 8, 5


def matrix(bits, seed):
    rng = np.random.default_rng(seed)
    shape = (ROWS, GROUPS)
    return NBits(
        bits=bits,
        block=BLOCK,
        columns=BLOCK * GROUPS,
        codes=rng.integers(0, 256, (*shape, BLOCK * bits // 8), dtype=np.uint8),
        scales=rng.uniform(0.5, 2, shape).astype(np.float32),
        zero_points=rng.integers(0, 1 << bits, shape, dtype=np.uint8),
        residual=np.zeros(shape, np.float32),
        spans=np.ones(shape, np.float32),
    )


def dense(matrix):
    """Its weights [N, K], by the definition in `NBits`."""
    codes = unpack(matrix.codes, matrix.bits).reshape(matrix.rows, -1, matrix.block).astype(float)
    steps = codes - matrix.zero_points[..., None]
    return (steps * matrix.scales[..., None]).reshape(matrix.rows, -1)


channels = st.sets(st.integers(0, BLOCK * GROUPS - 1), min_size=1, max_size=BLOCK).map(sorted)


@given(channels, st.sampled_from([4, 8]), st.integers(0, 99))
def test_columns_apart_say_what_the_old_ones_did(channels, bits, seed):
    before = matrix(bits, seed)
    kept = before.codes.copy()
    x = np.random.default_rng(seed).standard_normal(before.columns)
    after = with_outlier_columns(before, channels, in_table=False)
    np.testing.assert_array_equal(before.codes, kept)
    got = dense(after) @ x[sources(after)]
    largest = np.abs(dense(before)).max()
    twice_rounded = largest / (2**bits - 1) ** 2
    wanted = dense(before) @ x
    assert np.abs(got - wanted).max() <= 2 * twice_rounded * np.abs(x[channels]).sum()


@given(channels, st.integers(0, 99))
def test_a_table_keeps_its_rows(channels, seed):
    before = matrix(8, seed)
    after = with_outlier_columns(before, channels, in_table=True)
    np.testing.assert_array_equal(after.codes[:, :GROUPS], before.codes)
    coarse_and_rest = np.random.default_rng(seed).standard_normal((2, BLOCK))
    coarse_and_rest[:, len(channels) :] = 0
    coarse, rest = coarse_and_rest
    added = dense(after)[:, before.columns :] @ np.concatenate([coarse, rest, coarse])
    wanted = dense(before)[:, channels] @ coarse_and_rest.sum(axis=0)[: len(channels)]
    # The rest is at most half a step of the coarse part, and misses the second rounding.
    largest = np.abs(dense(before)).max()
    assert np.abs(added - wanted).max() <= largest / 254 * np.abs(rest).sum() + 1e-3


def test_the_channels_of_a_norm_that_is_large_there_are_found(tmp_path):
    """Norm weights make them stand out, which is how they come about in real models."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    tiny = make_tiny(tmp_path / "tiny", **sizes, num_key_value_heads=2, head_dim=64)
    checkpoint = open_checkpoint(tiny.path)
    large = [3, 70, 200]
    factor = np.ones(256, np.float32)
    factor[large] = 60
    decoder = load_decoder(checkpoint, mx.float32)
    norm = decoder.model.layers[1].post_attention_layernorm
    norm.weight = norm.weight * mx.array(factor)
    checkpoint = store(checkpoint, decoder)
    found = {}

    def watched(*args):
        found.update(find_outliers.find_outliers(*args))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pippin.export.folder.find_outliers", watched)
        export_folder(checkpoint, tmp_path / "out", weights="q4", context=CONTEXT)
    assert set(large) <= set(found["model.layers.1.mlp.gate_proj"])
    assert found["model.layers.1.mlp.gate_proj"] == found["model.layers.1.mlp.up_proj"]
    assert found["model.layers.0.mlp.down_proj"] == ()


@pytest.mark.parametrize("bits", [4, 8])
def test_columns_apart_take_the_noise_away(bits):
    before, large = matrix(bits, 0), [3, 70, 200]
    x = np.random.default_rng(1).standard_normal((50, before.columns))
    x[:, large] *= 60
    after = with_outlier_columns(before, large, in_table=False)
    wanted = x @ dense(before).T
    plain = rounded(x) @ dense(before).T - wanted
    apart = rounded(x[:, sources(after)]) @ dense(after).T - wanted
    assert np.square(apart).mean() < np.square(plain).mean() / 4


def rounded(x):
    """As accuracy level 4 of MatMulNBits sees x: int8 by blocks."""
    blocks = x.reshape(len(x), -1, BLOCK)
    step = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    return (np.rint(blocks / np.where(step == 0, 1, step)) * step).reshape(x.shape)
