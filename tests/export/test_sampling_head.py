"""The optional outputs that callers sample from are what numpy finds in the logits."""

import numpy as np
import pytest

from pippin.export.sampling_head import TOP
from pippin.export.verify import verify_folder
from pippin.runtime.ort_engine import OrtEngine
from support.exported import CONTEXT, PlainRun, export_folder, random_ids, tiny_checkpoint


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("vocab", [97, 40])
def test_outputs_are_those_of_the_last_row(dialect, vocab, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny", vocab_size=vocab)
    options = {"weights": "fp32", "dialect": dialect, "context": CONTEXT}
    out = export_folder(checkpoint, tmp_path / "out", sampling=True, **options)
    plain = export_folder(checkpoint, tmp_path / "plain", **options)
    run, count = PlainRun(out, batch=3), min(TOP, vocab)
    feeds = {
        "input_ids": np.array([random_ids(9, vocab, seed) for seed in range(3)]),
        "attention_mask": np.ones((3, 9), np.int64),
        **run.empty_caches(3, 0),
    }
    names = ["token", "top_ids", "top_logits"]
    for rows in (0, 1):
        asked = feeds | {"num_logits": np.array([rows])}
        logits, token, ids, values = run.session.run(["logits", *names], asked)
        falling = -np.sort(-logits[:, -1], axis=-1)
        np.testing.assert_array_equal(token, logits[:, -1].argmax(-1))
        np.testing.assert_array_equal(values, falling[:, :count])
        np.testing.assert_array_equal(np.take_along_axis(logits[:, -1], ids, -1), values)
    alone = run.session.run(names, feeds)  # without logits
    np.testing.assert_array_equal(alone[0], token)
    ours = [
        OrtEngine.from_folder(f, threads=1).open().verify(random_ids(9, vocab))
        for f in (out, plain)
    ]
    np.testing.assert_array_equal(*ours)
    assert verify_folder(out).ok


def test_of_equal_logits_the_first_is_taken(tmp_path):
    """A head of zeros makes all logits equal."""
    import mlx.core as mx

    from pippin.mlx_model.load import load_decoder
    from support.exported import store

    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    decoder = load_decoder(checkpoint, mx.float32)
    decoder.lm_head.weight = mx.zeros_like(decoder.lm_head.weight)
    out = export_folder(store(checkpoint, decoder), tmp_path / "out", weights="fp32", sampling=True)
    run = PlainRun(out)
    feeds = {"input_ids": np.array([[1, 2]]), "attention_mask": np.ones((1, 2), np.int64)}
    token, ids = run.session.run(["token", "top_ids"], feeds | run.empty_caches(1, 0))
    assert token.tolist() == [0]
    assert ids[0, :3].tolist() == [0, 1, 2]
