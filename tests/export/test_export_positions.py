"""ALiBi and learned positions as graphs: padded batches, and half precision far from the start."""

from pathlib import Path

import numpy as np
import pytest

from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from support.exported import difference, export_and_open, mlx_logits, random_ids
from support.tiny import make_tiny

MODELS = {
    "alibi": ("Bloom", {"hidden_size": 96, "n_head": 6, "n_layer": 2}),
    "learned": ("OPT", {"hidden_size": 96, "ffn_dim": 80, "num_hidden_layers": 2}),
}


@pytest.fixture(params=MODELS)
def checkpoint(request, tmp_path: Path) -> Checkpoint:
    kind, config = MODELS[request.param]
    return open_checkpoint(make_tiny(tmp_path / "tiny", kind, **config).path)


def test_a_right_padded_batch_in_gqa_and_steps_after_it(checkpoint: Checkpoint, tmp_path: Path):
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32")
    lengths = (17, 4, 11)
    sequences = [random_ids(n + 2, seed=n) for n in lengths]
    ids, mask = np.zeros((3, 17), np.int64), np.zeros((3, 17), np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = sequences[row][:length], 1
    references = [mlx_logits(checkpoint, tokens) for tokens in sequences]
    run.reset(3)
    found = run(ids, mask)
    for row, length in enumerate(lengths):
        assert difference(found[row, :length], references[row][:length]) < 1e-4
    for step in range(2):
        mask = np.concatenate([mask, np.zeros((3, 1), np.int64)], axis=1)
        following = np.zeros((3, 1), np.int64)
        for row, length in enumerate(lengths):
            following[row, 0] = sequences[row][length + step]
            mask[row, length + step] = 1
        found = run(following, mask)
        for row, length in enumerate(lengths):
            assert difference(found[row, 0], references[row][length + step]) < 1e-4


def test_padding_on_either_side_in_standard(checkpoint: Checkpoint, tmp_path: Path):
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect="standard")
    tokens = random_ids(16, seed=3)
    ids, mask = np.full((3, 17), 5, np.int64), np.zeros((3, 17), np.int64)
    starts = (3, 0, 2)
    for row, start in enumerate(starts):
        ids[row, start : start + 14], mask[row, start : start + 14] = tokens[:14], 1
    reference = mlx_logits(checkpoint, tokens)
    run.reset(3)
    found = run(ids, mask)
    assert np.isfinite(found).all()
    for row, start in enumerate(starts):
        assert difference(found[row, start : start + 14], reference[:14]) < 1e-4
    for at in (14, 15):
        mask = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
        found = run(np.full((3, 1), tokens[at]), mask)
        for row in range(3):
            assert difference(found[row, 0], reference[at]) < 1e-4


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_half_precision_far_from_the_start(
    checkpoint: Checkpoint, tmp_path: Path, dialect: str
) -> None:
    """What ALiBi adds is small near a row's own key, where float16 is fine."""
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp16", dialect=dialect)
    tokens = random_ids(250)
    ids = np.array([tokens], np.int64)
    found = run(ids, np.ones_like(ids))
    assert difference(found[0], mlx_logits(checkpoint, tokens)) < 1e-2
