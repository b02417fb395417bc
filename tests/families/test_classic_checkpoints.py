"""Classic families beside their rows: published configs, weight names and ALiBi's slopes."""

import json
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.families import read_family
from pippin.mlx_model.families.common.alibi import alibi
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.families import TOLERANCE, error
from support.published_configs import PUBLISHED
from support.tiny import Tiny, make_tiny

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64}


@dataclass(frozen=True)
class Altered(Checkpoint):
    """A checkpoint with other weights than those on disk."""

    weights: dict[str, mx.array] = field(default_factory=dict)

    def load_weights(self) -> dict[str, mx.array]:
        return dict(self.weights)


def logits(checkpoint: Checkpoint) -> np.ndarray:
    engine = MlxEngine(load_decoder(checkpoint, mx.float32), "classic", "0")
    return np.array(engine.open().verify(IDS))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_what_transformers_makes_of_it(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    published = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(published))
    theirs = AutoConfig.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    ours = read_family(published).config
    assert ours == read_family(saved).config
    assert (ours.layers, ours.hidden_size, ours.heads, ours.vocab_size) == (
        theirs.num_hidden_layers,
        theirs.hidden_size,
        theirs.num_attention_heads,
        theirs.vocab_size,
    )
    assert ours.tie_embeddings == theirs.tie_word_embeddings


NOT_IMPLEMENTED = {  # what the architecture can be told to do otherwise
    "gpt2": {"add_cross_attention": True},
    "gpt-j-6b": {"tie_word_embeddings": True},
    "bloom-560m": {"apply_residual_connection_post_layernorm": True},
    "mpt-7b-storywriter": {"no_bias": False, "norm_type": "rmsnorm", "logit_scale": 0.5},
    "opt-125m": {"do_layer_norm_before": False, "word_embed_proj_dim": 512},
    "falcon-7b": {"num_ln_in_parallel_attn": 2},
    "falcon-40b": {"parallel_attn": False},
    "falcon-rw-1b": {"num_kv_heads": 8},
    "starcoder2-3b": {"norm_type": "rms_norm", "norm_epsilon": 1e-6},
    "command-r7b": {"use_parallel_block": False, "use_qk_norm": True},
}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in NOT_IMPLEMENTED.items() for key in keys]
)
def test_what_is_not_implemented_is_refused_by_name(name: str, key: str) -> None:
    with pytest.raises(InputError, match=key):
        read_family({**PUBLISHED[name], key: NOT_IMPLEMENTED[name][key]})


@pytest.mark.parametrize(
    ("key", "value"),
    [("qk_ln", True), ("alibi", False), ("prefix_lm", True), ("attn_type", "multiquery_attention")],
)
def test_what_mpts_attention_does_not_implement_is_refused_by_name(key: str, value: object):
    published = PUBLISHED["mpt-7b-storywriter"]
    attention = {**published["attn_config"], key: value}
    with pytest.raises(InputError, match=f"attn_config has {key}"):
        read_family({**published, "attn_config": attention})


MASK = mx.ones((1, 1, 64, 64))
OTHER_NAMES = {  # than transformers 5 saves, and buffers that were stored once
    "GPT2": (GPT2, r"^transformer\.", "", {"h.0.attn.bias": MASK}),
    "GPTNeoX": (
        {},
        r"^embed_out\.",
        "lm_head.",
        {
            "gpt_neox.layers.0.attention.bias": MASK,
            "gpt_neox.layers.0.attention.masked_bias": mx.array(-1e9),
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": mx.ones((2,)),
        },
    ),
    "GPTJ": (
        {**GPT2, "rotary_dim": 8},
        r"^$",
        "",
        {
            "transformer.h.1.attn.bias": MASK,
            "transformer.h.1.attn.masked_bias": mx.array(-1e9),
        },
    ),
    "Bloom": ({"hidden_size": 64, "n_head": 4, "n_layer": 2}, r"^transformer\.", "", {}),
    "OPT": ({"ffn_dim": 80}, r"^model\.decoder\.", "decoder.", {}),
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_weights_under_other_names(kind: str, tmp_path: Path) -> None:
    config, pattern, replacement, buffers = OTHER_NAMES[kind]
    tiny = make_tiny(tmp_path / "model", kind, **config)
    checkpoint = open_checkpoint(tiny.path)
    weights = checkpoint.load_weights()
    weights = {re.sub(pattern, replacement, name): w for name, w in weights.items()}
    found = logits(Altered(**vars(checkpoint), weights={**weights, **buffers}))
    assert error(found, tiny.logits(IDS)) <= TOLERANCE


@pytest.mark.parametrize("kind", ["GPT2", "Falcon", "OPT"])
def test_a_tied_head_that_is_stored_all_the_same(kind: str, tmp_path: Path) -> None:
    config = {"GPT2": GPT2, "Falcon": {}, "OPT": {"ffn_dim": 80}}[kind]
    tiny = make_tiny(tmp_path / "model", kind, **config)
    checkpoint = open_checkpoint(tiny.path)
    table = mx.array(tiny.reference.get_input_embeddings().weight.detach().numpy())
    weights = {**checkpoint.load_weights(), "lm_head.weight": table}
    found = logits(Altered(**vars(checkpoint), weights=weights))
    assert error(found, tiny.logits(IDS)) <= TOLERANCE


# Module of mlx-lm → kind and config. Its NeoX and StarCoder2 compute the activations that stand
# here, whatever the config says.
MLX_LM = {
    "gpt2": ("GPT2", {**GPT2, "n_ctx": 64}),
    "gpt_neox": (
        "GPTNeoX",
        {
            "hidden_size": 96,
            "hidden_act": "gelu_new",
            "intermediate_size": 384,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
        },
    ),
    "starcoder2": (
        "Starcoder2",
        {"hidden_size": 96, "intermediate_size": 96, "hidden_act": "gelu"},
    ),
    "stablelm": (
        "StableLm",
        {
            "hidden_size": 192,
            "intermediate_size": 96,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    ),
    "cohere": ("Cohere", {"hidden_size": 96, "intermediate_size": 96, "use_qk_norm": True}),
    "cohere2": (
        "Cohere2",
        {
            "hidden_size": 96,
            "head_dim": 16,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "sliding_window": 8,
        },
    ),
}


def their_model(module: str, tiny: Tiny, config: dict) -> nn.Module:
    """mlx-lm's model of the checkpoint, quantized to 4 bits."""
    source = import_module(f"mlx_lm.models.{module}")
    model = source.Model(source.ModelArgs.from_dict(config))
    weights = open_checkpoint(tiny.path).load_weights()
    weights = {re.sub(r"^transformer\.", "", name): w for name, w in weights.items()}
    weights = model.sanitize(weights) if hasattr(model, "sanitize") else weights
    model.load_weights(list(weights.items()))
    nn.quantize(model, group_size=32, bits=4)
    model.eval()
    return model


@pytest.mark.parametrize("module", MLX_LM)
def test_what_mlx_lm_has_quantized_loads_and_is_exported(module: str, tmp_path: Path) -> None:
    kind, config = MLX_LM[module]
    tiny = make_tiny(tmp_path / "model", kind, **config)
    stored = open_checkpoint(tiny.path).config
    model = their_model(module, tiny, {**stored, **stored.get("rope_parameters", {}), **config})
    theirs = np.array(model(mx.array([IDS]))[0].astype(mx.float32))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(tiny.path / "model.safetensors"), weights, {"format": "mlx"})
    stored = {**stored, "quantization": {"group_size": 32, "bits": 4}}
    (tiny.path / "config.json").write_text(json.dumps(stored))
    checkpoint = open_checkpoint(tiny.path)
    assert error(logits(checkpoint), theirs) <= TOLERANCE
    for dialect in ("gqa", "standard"):
        folder = export_folder(checkpoint, tmp_path / dialect, weights="fp32", dialect=dialect)
        found = np.array(OrtEngine.from_folder(folder, threads=1).open().verify(IDS))
        assert error(found, theirs) <= TOLERANCE, dialect


HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 25, 32, 71, 112)


@pytest.mark.parametrize("heads", HEADS)
def test_slopes_are_those_of_bloom(heads: int) -> None:
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    np.testing.assert_allclose(alibi(heads).slopes, theirs[:, 0, 1].numpy(), rtol=1e-5)


@pytest.mark.parametrize("bias_max", [8, 16])
@pytest.mark.parametrize("heads", HEADS)
def test_slopes_are_those_of_mpt(heads: int, bias_max: int) -> None:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = -build_mpt_alibi_tensor(heads, 2, bias_max)[:, 0, 0].numpy()
    np.testing.assert_allclose(alibi(heads, bias_max).slopes, theirs, rtol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_falcons_slopes_are_rounded_and_scaled(heads: int) -> None:
    import torch
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    config = {**PUBLISHED["falcon-rw-1b"], "hidden_size": 64 * heads, "num_attention_heads": heads}
    ours = read_family(config).config.blocks[0].position.slopes
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    np.testing.assert_allclose(ours, theirs[:, 0, 1].numpy() / 8.0, rtol=1e-6)
