"""Configs as the hub has them from years past, against transformers, which reads them too."""

import json
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.families import read_family
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.families import ROWS, TOLERANCE, error
from support.family_rows.llama_like import SIZES
from support.tiny import Tiny, config_class, make_tiny

LENGTHS = (33, 90)
_WIDE = {**SIZES, "hidden_size": 128}
_LONG = [1.0 + 0.9 * pair**1.5 for pair in range(12)]
_SHORT = [1.0 + 0.05 * pair for pair in range(12)]
_LONGROPE = {
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}


@dataclass(frozen=True)
class Old:
    """A config that transformers reads, in which some keys stand under older names."""

    name: str
    kind: str
    config: dict[str, Any]  # what transformers makes the model of
    # Keys of the saved config that the old one does not have, and what it has besides.
    dropped: tuple[str, ...] = ("rope_parameters",)
    besides: dict[str, Any] = field(default_factory=dict)


OLD = (
    Old("llama-linear", "Llama", SIZES | {"rope_scaling": {"type": "linear", "factor": 2.5}}),
    Old(
        "vicuna-16k",
        "Llama",
        {
            **SIZES,
            "max_position_embeddings": 64,
            "rope_scaling": {"type": "linear", "factor": 4.0},
        },
        besides={"max_sequence_length": 256},
    ),
    Old(
        "qwen2-yarn",
        "Qwen2",
        {
            **SIZES,
            "rope_theta": 700.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        dropped=("rope_parameters", "layer_types"),
        besides={"use_mrope": False, "sliding_window": 131072, "use_sliding_window": False},
    ),
    Old(
        "qwen3",
        "Qwen3",
        {**SIZES, "head_dim": 32, "rope_theta": 700.0},
        dropped=("rope_parameters", "layer_types"),
        besides={"rope_scaling": None},
    ),
    Old(
        "smollm3",
        "SmolLM3",
        {**SIZES, "num_hidden_layers": 4, "rope_theta": 700.0},
        dropped=("rope_parameters", "layer_types", "no_rope_layers"),
        besides={"max_window_layers": 28, "rope_scaling": None},
    ),
    Old("gemma-act", "Gemma", {**SIZES, "head_dim": 32, "hidden_act": "gelu", "rope_theta": 700.0}),
    Old(
        "gemma-two-acts",
        "Gemma",
        {**SIZES, "head_dim": 32, "rope_theta": 700.0},
        besides={"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
    ),
    Old(
        "gemma2",
        "Gemma2",
        {**SIZES, "head_dim": 32, "rope_theta": 700.0, "sliding_window": 16},
        dropped=("rope_parameters", "layer_types"),
        besides={
            "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window_size": 16,
        },
    ),
    Old(
        "gemma3-text",
        "Gemma3Text",
        {
            **SIZES,
            "head_dim": 32,
            "num_hidden_layers": 3,
            "sliding_window": 16,
            "sliding_window_pattern": 3,
            "rope_theta": 7000.0,
            "rope_local_base_freq": 300.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        dropped=("rope_parameters", "layer_types", "_sliding_window_pattern"),
        besides={"cache_implementation": "hybrid"},
    ),
    Old(
        "phi3-su",
        "Phi3",
        {
            **_WIDE,
            **_LONGROPE,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
        },
        # The first name of longrope, over which transformers 5 stumbles.
        besides={
            "rope_scaling": {"type": "su", "short_factor": _SHORT, "long_factor": _LONG},
            "attention_bias": False,
            "embd_pdrop": 0.0,
        },
    ),
    Old(
        "phi4-mini",
        "Phi3",
        {
            **_WIDE,
            **_LONGROPE,
            "partial_rotary_factor": 0.75,
            "sliding_window": 262144,
            "rope_scaling": {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
        },
        besides={
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
        },
    ),
    Old("phi", "Phi", {**_WIDE, "partial_rotary_factor": 0.25, "rope_theta": 700.0}),
    Old("phi-default-part", "Phi", {**_WIDE, "rope_theta": 700.0}),
    Old("granite", "Granite", {**SIZES, "rope_theta": 700.0, "attention_multiplier": 0.3}),
    Old("olmo2", "Olmo2", {**SIZES, "rope_theta": 700.0}, besides={"rope_scaling": None}),
    Old(
        "glm4",
        "Glm4",
        {**SIZES, "head_dim": 32, "partial_rotary_factor": 0.25, "rope_theta": 700.0},
        besides={"rope_scaling": None},
    ),
)


def rewrite(tiny: Tiny, old: Old) -> None:
    """Make the checkpoint's config.json the old one."""
    path = tiny.path / "config.json"
    saved = json.loads(path.read_text())
    kept = {key: value for key, value in saved.items() if key not in old.dropped}
    path.write_text(json.dumps({**kept, **old.config, **old.besides}))


@pytest.mark.parametrize("old", OLD, ids=lambda old: old.name)
def test_an_old_config_says_what_transformers_says(old, tmp_path):
    tiny = make_tiny(tmp_path / "checkpoint", old.kind, **old.config)
    rewrite(tiny, old)
    engine = MlxEngine(load_decoder(open_checkpoint(tiny.path), mx.float32), "old", "0")
    for length in LENGTHS:
        ids = np.random.default_rng(0).integers(0, 97, length).tolist()
        found = error(np.array(engine.open().verify(ids)), tiny.logits(ids))
        assert found <= TOLERANCE, f"{length} tokens: {found:.1e}"


def test_what_a_large_gemma3_leaves_out_is_what_transformers_says():
    """Its text_config holds little more than what differs from the class."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "text_config": text,
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    }
    theirs = config_class("Gemma3").from_dict(json.loads(json.dumps(config))).text_config
    ours = read_family(config).config
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.heads, ours.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.head_dim, ours.feed_forward) == (theirs.head_dim, theirs.intermediate_size)
    assert ours.context == theirs.max_position_embeddings
    assert ours.norm.eps == theirs.rms_norm_eps
    assert ours.scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.logit_softcap == theirs.final_logit_softcapping
    windows = {"sliding_attention": theirs.sliding_window, "full_attention": None}
    assert [block.window for block in ours.blocks] == [windows[k] for k in theirs.layer_types]
    for block, kind in zip(ours.blocks, theirs.layer_types, strict=True):
        rope = theirs.rope_parameters[kind]
        assert block.position.base == rope["rope_theta"]
        assert block.position.factor == rope.get("factor", 1.0)


@pytest.mark.parametrize("head", [False, True], ids=["no-head", "head"])
def test_both_layouts_of_gemma3_are_one_model(head, tmp_path):
    """Checkpoints call the tensors as transformers 4 did, or as transformers 5 does inside."""
    row = next(row for row in ROWS if row.name == "gemma3")
    tiny = make_tiny(tmp_path / "checkpoint", row.kind, **row.config)
    checkpoint = open_checkpoint(tiny.path)
    family = read_family(checkpoint.config)
    stored = checkpoint.load_weights()
    assert any(name.startswith("language_model.model.layers.") for name in stored)
    inside = {f"model.{name.replace('.model.', '.')}": array for name, array in stored.items()}
    if head:
        stored["language_model.lm_head.weight"] = mx.ones((97, 64))
        inside["lm_head.weight"] = mx.ones((97, 64))
    converted = family.convert(stored, family.config)
    assert {*converted} == {*family.convert(inside, family.config)}
    assert ("lm_head.weight" in converted) == head


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("Gemma", {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}, "silu"),
        ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma2", {"sliding_window": 16, "sliding_window_size": 17}, "sliding_window_size"),
        ("Gemma3Text", {"attn_logit_softcapping": 3.0}, "attn_logit_softcapping"),
        ("Gemma3Text", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "factor"),
        ("Qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ("Qwen2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("SmolLM3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("Granite", {"logits_scaling": 0}, "logits_scaling"),
        ("Phi3", {"lm_head_bias": True}, "lm_head_bias"),
        ("Glm4", {"partial_rotary_factor": 2.0}, "head"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_or_is_not_implemented_is_named(kind, changes, words):
    config = {"model_type": config_class(kind).model_type, "vocab_size": 97, **SIZES}
    with pytest.raises(InputError, match=words) as refusal:
        read_family({"intermediate_size": 80, **config, **changes})
    assert "\n" not in str(refusal.value)
