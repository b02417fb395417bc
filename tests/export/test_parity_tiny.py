"""Every pair of `pippin parity` on random checkpoints that transformers made."""

import pytest

from pippin.apps import parity
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError
from support.tiny import make_tiny

SIZES = {"hidden_size": 64, "intermediate_size": 96}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHECKPOINTS = {
    "gqa": {**SIZES, "num_attention_heads": 4},
    "mha, tied": {"head_dim": 16, "num_key_value_heads": 6, "tie_word_embeddings": True},
    "mqa, biases": {
        "head_dim": 48,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "odd sizes": {"hidden_size": 42, "intermediate_size": 71, "vocab_size": 101, "head_dim": 16},
    "llama3 rope, wide heads": {"rope_parameters": LLAMA3, "head_dim": 32},
}
# Random weights have no quality to keep: what int8 activations cost is judged on a real model.
EXACT = [v for v in parity.VARIANTS if v.limits in ("exact", "exact quantized")]


@pytest.fixture(params=CHECKPOINTS, ids=lambda name: name.replace(" ", "-"))
def checkpoint(request, tmp_path):
    return open_checkpoint(make_tiny(tmp_path / "tiny", **CHECKPOINTS[request.param]).path)


def test_exact_pairs_hold(checkpoint):
    ids = parity.text_ids(checkpoint, None, 100)
    rows = list(parity.parity(checkpoint, ids, EXACT))
    assert len(rows) == 1 + sum(len(parity.LIMITS[variant.limits]) for variant in EXACT)
    assert [row for row in rows if not row.ok] == []


def test_a_wrong_export_is_noticed(checkpoint, monkeypatch):
    """The same rows fail when the graph's weights are not the checkpoint's."""
    original = parity.export_folder
    other = make_tiny(checkpoint.path / "other", seed=1, **_changes(checkpoint))
    monkeypatch.setattr(
        parity, "export_folder", lambda _, *a, **k: original(open_checkpoint(other.path), *a, **k)
    )
    rows = list(parity.parity(checkpoint, parity.text_ids(checkpoint, None, 60), EXACT[:1]))
    assert [row.measure for row in rows if not row.ok] == [
        "max logit difference",
        "equal greedy tokens",
    ]


def _changes(checkpoint) -> dict:
    """The config again, as arguments of `make_tiny`."""
    kept = ("architectures", "dtype", "transformers_version", "model_type")
    return {key: value for key, value in checkpoint.config.items() if key not in kept}


def test_too_short_a_text_is_refused(checkpoint):
    with pytest.raises(InputError, match="more than 32 tokens"):
        list(parity.parity(checkpoint, [1, 2, 3]))
