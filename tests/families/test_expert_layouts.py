"""Every public layout of experts' weights: all are the same model."""

import json
import re
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest

from pippin.export.quantize import quantize_decoder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.families import read_family
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.exported import export_and_open, mlx_logits
from support.families import TOLERANCE, error
from support.family_rows import moe
from support.tiny import make_tiny

SPARSE = {row.name: row for row in moe.ROWS}
# Whose weights mlx-lm reads from a checkpoint of transformers 5.
BY_MLX_LM = ("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granitemoe", "glm4-moe")
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
IDS = np.random.default_rng(0).integers(0, 97, 24).tolist()


@dataclass(frozen=True)
class Altered(Checkpoint):
    """A checkpoint with other weights than those on disk."""

    weights: dict[str, mx.array] = field(default_factory=dict)

    def load_weights(self):
        return dict(self.weights)


def altered(checkpoint, weights, **config):
    return Altered(
        **{**vars(checkpoint), "config": {**checkpoint.config, **config}}, weights=weights
    )


def logits(checkpoint):
    decoder = load_decoder(checkpoint, mx.float32)
    return np.array(MlxEngine(decoder, "tiny", "0").open().verify(IDS))


@pytest.fixture(scope="module", params=SPARSE)
def tiny(request, tmp_path_factory):
    row = SPARSE[request.param]
    return make_tiny(tmp_path_factory.mktemp(row.name), row.kind, row.seed, **row.config)


def test_the_names_that_transformers_has_in_memory(tiny):
    """Experts are stacked there, gate and up in one tensor."""
    weights = {n: mx.array(t.numpy()) for n, t in tiny.reference.state_dict().items()}
    assert any(array.ndim == 3 for array in weights.values())
    if tiny.reference.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    checkpoint = open_checkpoint(tiny.path)
    assert error(logits(altered(checkpoint, weights)), tiny.logits(IDS)) <= TOLERANCE


def older(config):
    """A config.json of transformers 5 in the spelling that mlx-lm reads."""
    rope = dict(config["rope_parameters"])
    count = next(config[key] for key in COUNTS if key in config)
    return {
        **config,
        "rope_theta": rope.pop("rope_theta"),
        "partial_rotary_factor": rope.pop("partial_rotary_factor", 1.0),
        "rope_scaling": rope if rope["rope_type"] != "default" else None,
        **dict.fromkeys(COUNTS, count),
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }


def by_mlx_lm(checkpoint, bits):
    """mlx-lm's model of the checkpoint, and its weights under its names with their settings."""
    utils = pytest.importorskip("mlx_lm.utils")
    from mlx.utils import tree_flatten

    config = older(checkpoint.config)
    model_class, arguments = utils._get_classes(config)
    model = model_class(arguments.from_dict(config))
    weights = model.sanitize(checkpoint.load_weights())
    model.load_weights(list(weights.items()))
    settings = {}
    if bits:
        model, config = utils.quantize_model(model, config, 32, bits)
        settings = {"quantization": config["quantization"]}
    return model, dict(tree_flatten(model.parameters())), settings


@pytest.mark.parametrize("bits", [None, 4], ids=["floats", "4-bit"])
@pytest.mark.parametrize("name", BY_MLX_LM)
def test_the_names_that_mlx_lm_writes(name, bits, tmp_path):
    """Its own `sanitize` and quantizer make the weights."""
    row = SPARSE[name]
    made = make_tiny(tmp_path, row.kind, row.seed, **row.config)
    checkpoint = open_checkpoint(made.path)
    model, weights, settings = by_mlx_lm(checkpoint, bits)
    assert any("switch_mlp" in name for name in weights)
    wanted = np.array(model(mx.array([IDS]))[0])
    assert error(logits(altered(checkpoint, weights, **settings)), wanted) <= TOLERANCE


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    """GLM-4.5 stores them behind the last layer."""
    row = SPARSE["glm4-moe"]
    made = make_tiny(tmp_path, row.kind, row.seed, **row.config)
    checkpoint = open_checkpoint(made.path)
    weights, last = checkpoint.load_weights(), row.config["num_hidden_layers"]
    more = {
        name.replace(f"layers.{last - 1}.", f"layers.{last}."): array
        for name, array in weights.items()
    }
    more[f"model.layers.{last}.eh_proj.weight"] = mx.ones((64, 128))
    found = logits(altered(checkpoint, {**weights, **more}))
    np.testing.assert_array_equal(found, logits(checkpoint))


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_latent_attention_is_refused_by_name(model_type):
    with pytest.raises(InputError, match=f"{model_type}.*latent attention") as refusal:
        read_family({"model_type": model_type, "hidden_size": 64})
    assert "\n" not in str(refusal.value)


def e2m1(code):
    """OCP MX v1.0, 5.3.3: a sign, two bits of exponent with bias 1, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if sign else size


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """GPT-OSS as published: the checkpoint, and transformers with the floats that it stands for."""
    import torch

    rng, row = np.random.default_rng(0), SPARSE["gpt-oss"]
    folder = tmp_path_factory.mktemp("mxfp4")
    made = make_tiny(folder, row.kind, row.seed, **row.config)
    values = np.array([e2m1(code) for code in range(16)])
    weights = open_checkpoint(made.path).load_weights()
    state = made.reference.state_dict()
    for name in [n for n in weights if re.search(r"experts\.(gate_up|down)_proj$", n)]:
        count, inputs, outputs = weights.pop(name).shape
        codes = rng.integers(0, 16, (count, outputs, inputs // 32, 32)).astype(np.uint8)
        scales = rng.integers(121, 125, codes.shape[:3]).astype(np.uint8)
        floats = values[codes] * 2.0 ** (scales[..., None].astype(float) - 127)
        dense = floats.reshape(count, outputs, inputs).swapaxes(1, 2)
        state[name].copy_(torch.from_numpy(dense.astype(np.float32)))
        weights[f"{name}_blocks"] = mx.array(codes[..., 0::2] | codes[..., 1::2] << 4)
        weights[f"{name}_scales"] = mx.array(scales)
    mx.eval(weights)
    (folder / "model.safetensors").unlink()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return made, open_checkpoint(folder)


def test_mxfp4_is_read_without_loss(mxfp4):
    made, checkpoint = mxfp4
    experts = load_decoder(checkpoint, mx.float32).model.layers[0].mlp.experts
    assert {layer.mode for layer in (experts.gate_proj, experts.up_proj, experts.down_proj)} == {
        "mxfp4"
    }
    assert error(logits(checkpoint), made.logits(IDS)) <= 1e-5


def test_mxfp4_is_of_gpt_oss_alone(mxfp4):
    _, checkpoint = mxfp4
    config = {**checkpoint.config, "model_type": "mixtral"}
    with pytest.raises(InputError, match="mxfp4"):
        read_family(config)


@pytest.mark.parametrize("weights", ["q4", "fp32"])
def test_mxfp4_is_exported_without_loss(weights, mxfp4, tmp_path):
    """Beside experts in mxfp4, q4 rounds what is in floating point: MLX has the same."""
    made, checkpoint = mxfp4
    decoder = load_decoder(checkpoint, mx.float32)
    if weights == "q4":
        quantize_decoder(decoder, "q4")
    run = export_and_open(checkpoint, tmp_path, weights=weights, dialect="gqa", exact=True)
    wanted = mlx_logits(decoder, IDS) if weights == "q4" else made.logits(IDS)
    assert error(run(IDS)[0], wanted) <= TOLERANCE
