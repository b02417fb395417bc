"""A checkpoint with a PEFT adapter says what PEFT says, on MLX and exported."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.mlx_model.adapters import with_adapter
from pippin.mlx_model.adapters.fuse import apply_adapter
from pippin.mlx_model.adapters.read import read_adapter
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.checkpoints.gguf import read_gguf
from pippin.mlx_model.checkpoints.gguf_model import load_weights
from support.adapters import edit_config, make_peft
from support.exported import difference, export_and_open, mlx_logits, random_ids
from support.llama_cpp import convert_to_gguf
from support.tiny import make_tiny

TIED = {"tie_word_embeddings": True}
EVERY_LAYER = {"target_modules": "all-linear"}
PATTERNS = {
    "target_modules": ["q_proj", "k_proj", "down_proj"],
    "rank_pattern": {"q_proj": 3, r"layers\.1\.self_attn\.k_proj": 5, "^model.layers.0.mlp.d.*": 2},
    "alpha_pattern": {"k_proj": 9, "layers": 50, r"layers\.[02]\.mlp.down_proj": 2.5},
}
# name → (changes of the base's config, LoraConfig)
CASES = {
    "lora": ({}, EVERY_LAYER),
    "attention-only": ({}, {"target_modules": ["q_proj", "v_proj"]}),
    "one-layer": ({}, {"target_modules": ["o_proj"], "layers_to_transform": [1]}),
    "rslora": ({}, {**EVERY_LAYER, "use_rslora": True}),
    "dora": ({}, {**EVERY_LAYER, "use_dora": True}),
    "dora-biases": ({"attention_bias": True}, {**EVERY_LAYER, "use_dora": True}),
    "patterns": ({}, PATTERNS),
    "patterns-rslora-dora": ({}, {**PATTERNS, "use_rslora": True, "use_dora": True}),
    "embedding": ({}, {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding-dora": ({}, {"target_modules": ["embed_tokens"], "use_dora": True}),
    "embedding-tied": (TIED, {"target_modules": ["embed_tokens", "q_proj"]}),
    "head-tied": (TIED, {"target_modules": ["lm_head", "q_proj"]}),
    "both-tied": (TIED, {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "head": ({}, {"target_modules": ["lm_head"]}),
    "saved-head": ({}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved-norms": ({}, {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]}),
    "saved-table-tied": (TIED, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "saved-both-tied": (
        TIED,
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "all-biases": ({"attention_bias": True}, {"target_modules": ["q_proj"], "bias": "all"}),
    "their-biases": ({"attention_bias": True}, {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "orthogonal": ({}, {**EVERY_LAYER, "init_lora_weights": "orthogonal"}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_peft(name: str, tmp_path: Path) -> None:
    changes, config = CASES[name]
    base = make_tiny(tmp_path / "base", num_hidden_layers=3, **changes)
    adapter = make_peft(tmp_path / "adapter", base.path, **config)
    ids = random_ids(40)
    reference = adapter.logits(ids)
    assert difference(base.logits(ids), reference) > 0.05  # the adapter matters
    assert difference(mlx_logits(_adapted(base.path, adapter.path), ids), reference) < 1e-4


GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
# transformers' class → (changes of its config, target_modules)
FAMILIES = {
    "GPT2": (GPT2, ["c_attn", "c_proj", "c_fc"]),
    "GPT2-head": (GPT2, ["c_attn", "lm_head"]),
    "GPT2-table": (GPT2, ["c_attn", "wte"]),
    "Phi3": ({}, ["qkv_proj", "gate_up_proj"]),
    "GPTNeoX": ({}, ["query_key_value", "dense", "embed_out"]),
    "Bloom": ({"n_layer": 2, "n_head": 4}, ["query_key_value", "dense_4h_to_h"]),
    "Qwen3": ({"head_dim": 16}, "all-linear"),
    "Gemma2-head": ({"head_dim": 16}, ["o_proj", "lm_head"]),
    "Mixtral": ({"num_local_experts": 4}, ["q_proj", "o_proj"]),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_other_families(name: str, tmp_path: Path) -> None:
    """What a family renames, splits or transposes was adapted before."""
    changes, targets = FAMILIES[name]
    base = make_tiny(tmp_path / "base", name.partition("-")[0], **changes)
    adapter = make_peft(tmp_path / "adapter", base.path, target_modules=targets)
    ids = random_ids(30)
    reference = adapter.logits(ids)
    assert difference(base.logits(ids), reference) > 0.05
    assert difference(mlx_logits(_adapted(base.path, adapter.path), ids), reference) < 1e-4


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("name", ["dora", "patterns", "embedding-tied", "saved-norms"])
def test_an_export_has_the_adapter_fused(name: str, dialect: str, tmp_path: Path) -> None:
    changes, config = CASES[name]
    base = make_tiny(tmp_path / "base", num_hidden_layers=3, hidden_size=96, **changes)
    adapter = make_peft(tmp_path / "adapter", base.path, **config)
    checkpoint = _adapted(base.path, adapter.path)
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect=dialect)
    ids = random_ids(40)
    assert difference(run(ids)[0], adapter.logits(ids)) < 1e-4


def test_a_gguf_of_the_base_takes_the_adapter(tmp_path: Path) -> None:
    """llama.cpp reorders the rows of q and k: an adapter is for the order that they came from."""
    base = make_tiny(tmp_path / "base", attention_bias=True)
    adapter = make_peft(tmp_path / "adapter", base.path, **EVERY_LAYER, use_dora=True)
    [gguf] = convert_to_gguf([base.path], "f32")
    weights = apply_adapter(load_weights(read_gguf(gguf)), read_adapter(adapter.path))
    wanted = _adapted(base.path, adapter.path).load_weights()
    assert weights.keys() == wanted.keys()
    for name, array in wanted.items():
        assert mx.allclose(weights[name], array, atol=1e-6), name


def test_the_fingerprint_is_of_both(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", num_hidden_layers=1)
    one, other = (
        make_peft(tmp_path / f"a{seed}", base.path, seed=seed, target_modules=["q_proj"]).path
        for seed in (1, 2)
    )
    copy = shutil.copytree(one, tmp_path / "copy")
    rescaled = edit_config(shutil.copytree(one, tmp_path / "rescaled"), lora_alpha=7)
    plain = open_checkpoint(base.path)
    prints = [with_adapter(plain, folder).fingerprint for folder in (one, other, rescaled)]
    assert len({plain.fingerprint, *prints}) == 4
    assert with_adapter(plain, copy).fingerprint == prints[0]
    (base.path / "config.json").write_text(
        json.dumps(json.loads((base.path / "config.json").read_text()) | {"rms_norm_eps": 1e-4})
    )
    assert _adapted(base.path, one).fingerprint not in prints


def _adapted(base: Path, adapter: Path) -> Checkpoint:
    return with_adapter(open_checkpoint(base), adapter)
