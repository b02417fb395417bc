"""Exported float graphs say what MLX says, however the tokens are cut into calls."""

import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.exported import (
    CONTEXT,
    PlainRun,
    difference,
    export_and_open,
    mlx_logits,
    random_ids,
    tiny_checkpoint,
)
from support.tiny import make_tiny

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0}
CASES = {
    "gqa": {},
    "mha-tied": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "mqa-biases": {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "odd-sizes": {"hidden_size": 42, "intermediate_size": 71, "vocab_size": 101, "head_dim": 16},
    "wide-heads-llama3": {"head_dim": 48, "rope_parameters": LLAMA3},
    "linear-rope": {"rope_parameters": LINEAR},
    "one-layer": {"num_hidden_layers": 1},
}
DIALECTS = ("gqa", "standard")


@pytest.fixture(params=CASES)
def tiny(request, tmp_path):
    sizes = {"hidden_size": 96, **CASES[request.param]}
    return make_tiny(tmp_path / "tiny", **sizes)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_prefill_chunks_and_steps_equal_mlx_and_transformers(tiny, dialect, tmp_path):
    ids = random_ids(60)
    reference = mlx_logits(open_checkpoint(tiny.path), ids)
    run = export_and_open(
        open_checkpoint(tiny.path), tmp_path / "out", weights="fp32", dialect=dialect
    )
    whole = run(ids)[0]
    assert difference(whole, reference) < 1e-4
    assert difference(whole, tiny.logits(ids)) < 1e-4
    run.reset()
    chunks = np.concatenate([run(ids[at : at + 23])[0] for at in range(0, len(ids), 23)])
    assert difference(chunks, reference) < 1e-4
    run.reset()
    steps = np.concatenate([run([token])[0] for token in ids])
    assert difference(steps, reference) < 1e-4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_fp16_is_near(tiny, dialect, tmp_path):
    """Random weights are chaotic: two hundredths here, one hundredth on a real model."""
    ids = random_ids(40)
    checkpoint = open_checkpoint(tiny.path)
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp16", dialect=dialect)
    found = run(ids)[0]
    assert found.dtype == np.float32
    assert difference(found, mlx_logits(checkpoint, ids)) < 2e-2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_greedy_tokens_are_identical(dialect, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect=dialect)
    ids, prompt = random_ids(9), 9
    logits = run(ids, count=None)
    for _ in range(128):
        ids.append(int(logits[0, -1].argmax()))
        logits = run(ids[-1:], count=None)
    greedy = mlx_logits(checkpoint, ids).argmax(axis=-1)
    assert ids[prompt:] == greedy[prompt - 1 : -1].tolist()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_num_logits_counts_from_the_last_row(dialect, tmp_path):
    run = export_and_open(
        tiny_checkpoint(tmp_path / "tiny"), tmp_path / "out", weights="fp32", dialect=dialect
    )
    ids = random_ids(12)
    rows = {}
    for count in (None, 0, 1, 5):
        run.reset()
        rows[count] = run(ids, count=count)
    assert rows[0].shape[1] == 12
    for count, wanted in ((None, 1), (1, 1), (5, 5)):
        assert rows[count].shape[1] == wanted
        assert difference(rows[count], rows[0][:, -wanted:]) < 1e-5


def test_right_padded_batch_in_gqa(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32")
    lengths = (17, 4, 11)
    sequences = [random_ids(n, seed=n) for n in lengths]
    ids, mask = np.zeros((3, 17), np.int64), np.zeros((3, 17), np.int64)
    for row, tokens in enumerate(sequences):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    run.reset(3)
    found = run(ids, mask)
    for row, tokens in enumerate(sequences):
        assert difference(found[row, : len(tokens)], mlx_logits(checkpoint, tokens)) < 1e-4


def test_padding_on_either_side_in_standard(tmp_path):
    """Both in one batch, and steps after it."""
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect="standard")
    tokens = random_ids(14, seed=3)
    ids, mask = np.full((3, 17), 5, np.int64), np.zeros((3, 17), np.int64)
    for row, start in enumerate((3, 0, 2)):
        ids[row, start : start + 14], mask[row, start : start + 14] = tokens, 1
    run.reset(3)
    found = run(ids, mask)
    assert np.isfinite(found).all()
    following = random_ids(4, seed=4)
    reference = mlx_logits(checkpoint, tokens + following)
    for row, start in enumerate((3, 0, 2)):
        assert difference(found[row, start : start + 14], reference[:14]) < 1e-4
    for at, token in enumerate(following):
        mask = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
        step = run(np.full((3, 1), token), mask)
        for row in range(3):
            assert difference(step[row, 0], reference[14 + at]) < 1e-4


def test_shared_buffers_in_gqa(tmp_path):
    """Past and present are one buffer, longer than the sequence: how engines run it."""
    import onnxruntime as ort

    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32")
    ids = random_ids(20)
    buffers = {
        name: ort.OrtValue.ortvalue_from_numpy(array)
        for name, array in run.empty_caches(1, 64).items()
    }
    rows, length = [], 0
    for part in (ids[:7], ids[7:12], *([token] for token in ids[12:])):
        length += len(part)
        binding = run.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([part], np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
        zero = ort.OrtValue.ortvalue_from_numpy(np.array([0], np.int64))
        binding.bind_ortvalue_input("num_logits", zero)
        binding.bind_output("logits")
        for name, value in buffers.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        run.session.run_with_iobinding(binding)
        rows.append(binding.copy_outputs_to_cpu()[0][0])
    assert difference(np.concatenate(rows), mlx_logits(checkpoint, ids)) < 1e-4


def test_a_shorter_context_is_kept_in_all_places(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    folder = export_folder(checkpoint, tmp_path / "out", weights="fp32", context=100)
    run = PlainRun(folder)
    assert run.session.get_modelmeta().custom_metadata_map["pippin.context"] == "100"
    assert CONTEXT > 100
    assert '"context_length": 100' in (folder / "genai_config.json").read_text()
    assert '"max_position_embeddings": 100' in (folder / "config.json").read_text()
