"""`pippin inspect`: counts against transformers', bytes against the files, memory against MLX."""

import json
from pathlib import Path

import pytest

from pippin.apps.inspect import count_parameters, inspect_model
from pippin.apps.models import load_generator
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.families import read_family
from support.tiny import make_tiny


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 6, "head_dim": 20, "vocab_size": 101},
    ],
)
def test_parameters_are_those_that_transformers_counts(tmp_path: Path, changes: dict) -> None:
    tiny = make_tiny(tmp_path / "model", **changes)
    inspection = inspect_model(tiny.path, "tiny")
    assert inspection.parameters == tiny.reference.num_parameters()
    named = dict(tiny.reference.named_parameters())
    attention = sum(p.numel() for n, p in named.items() if "self_attn" in n)
    mlp = sum(p.numel() for n, p in named.items() if "mlp" in n)
    norms = sum(p.numel() for n, p in named.items() if "norm" in n)
    assert [(c.name, c.parameters) for c in inspection.components] == [
        ("attention", attention),
        ("mlp", mlp),
        ("embeddings", inspection.parameters - attention - mlp - norms),
        ("norms", norms),
    ]
    assert [c.bytes for c in inspection.components] == [
        4 * c.parameters for c in inspection.components
    ]


CLASSIC = {
    "GPT2": {"n_embd": 64, "n_head": 4, "n_layer": 2},
    "GPTNeoX": {},
    "GPTJ": {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8},
    "Bloom": {"n_head": 4, "n_layer": 2},
    "Mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "OPT": {"ffn_dim": 80},
    "Falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "Starcoder2": {},
    "StableLm": {"qk_layernorm": True, "hidden_size": 96},
    "Cohere2": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("kind", CLASSIC)
def test_names_of_every_family_have_their_component(tmp_path: Path, kind: str) -> None:
    """What is stored, by its own names, is what the decoder counts by ours."""
    tiny = make_tiny(tmp_path / "model", kind, **CLASSIC[kind])
    inspection = inspect_model(tiny.path, "tiny", 16)
    assert inspection.parameters == tiny.reference.num_parameters()
    for component in inspection.components:
        assert 0 < component.bytes == 4 * component.parameters, component.name


def test_memory_is_what_the_engine_takes(model: Path) -> None:
    engine = load_generator(str(model), "mlx").engine
    half, full = inspect_model(model, "tiny", context=100).costs
    assert full.kv_per_token == engine.info.kv_bytes_per_token == 2 * half.kv_per_token
    assert full.kv_cache == engine.memory_needed(100)
    assert full.total == engine.info.weight_bytes + full.kv_cache
    # 6 heads, 3 layers, 100 × 100 scores of 2 and 4 bytes
    assert (half.naive_scores_layer, half.naive_scores_all) == (120_000, 360_000)
    assert (full.naive_scores_layer, full.naive_scores_all) == (240_000, 720_000)


def test_the_context_is_the_models_by_default(model: Path, invoke) -> None:
    assert inspect_model(model, "tiny").context == 512
    document = json.loads(invoke("inspect", model, "--json").stdout)
    assert document["context"] == document["config"]["context"] == 512
    assert document["parameters"] == sum(c["parameters"] for c in document["components"])
    assert document["weight_bytes"] == sum(c["bytes"] for c in document["components"])
    assert [cost["dtype"] for cost in document["costs"]] == ["fp16", "fp32"]


def test_the_table(model: Path, invoke) -> None:
    lines = invoke("inspect", model, "--context", 100).stdout.splitlines()
    assert lines[0].startswith(f"{model}: llama, 3 layers, hidden size 48, 6 heads (2 for keys")
    assert lines[2].split() == ["COMPONENT", "PARAMETERS", "SHARE", "STORED", "SHARE"]
    assert [line.split()[0] for line in lines[3:8]] == [
        *("attention", "mlp", "embeddings", "norms", "all")
    ]
    assert lines[-1].split()[-4:] == ["351.6", "KiB", "703.1", "KiB"]


def test_smollm2_from_its_headers(smollm2: Path) -> None:
    inspection = inspect_model(smollm2, "smollm2", 2048)
    # the model card says 135M; the count is that of the Llama formula for its config
    assert inspection.parameters == 134_515_008
    config = read_family(open_checkpoint(smollm2).config).config
    assert count_parameters(config)["embeddings"] == 49152 * 576
    header = smollm2.stat().st_size - inspection.weight_bytes
    assert 0 < header < 3_000_000  # the vocabulary
