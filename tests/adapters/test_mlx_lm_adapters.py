"""A checkpoint with an adapter by mlx-lm says what mlx-lm says, on MLX and exported."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.lora import LoRASwitchLinear
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from pippin.export.quantize import quantize_decoder
from pippin.mlx_model.adapters import with_adapter
from pippin.mlx_model.adapters.fuse import apply_adapter
from pippin.mlx_model.adapters.read import read_adapter
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.load import load_decoder
from support.adapters import make_mlx_lm
from support.exported import difference, export_and_open, mlx_logits, random_ids
from support.tiny import make_tiny

LINEARS = [
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
]
TIED = {"tie_word_embeddings": True}
# name → (changes of the base's config, options of make_mlx_lm)
CASES = {
    "lora": ({}, {"keys": LINEARS}),
    "dora": ({}, {"keys": LINEARS, "dora": True}),
    "last-layer": ({}, {"keys": ["self_attn.q_proj", "self_attn.v_proj"], "num_layers": 1}),
    "biases": ({"attention_bias": True}, {"keys": LINEARS, "dora": True, "rank": 3, "scale": 20.0}),
    "table": ({}, {"keys": ["model.embed_tokens", "lm_head"]}),
    "table-dora": ({}, {"keys": ["model.embed_tokens", "lm_head"], "dora": True}),
    "table-tied": (TIED, {"keys": ["model.embed_tokens"]}),
    "table-tied-dora": (TIED, {"keys": ["model.embed_tokens"], "dora": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_mlx_lm(name: str, tmp_path: Path) -> None:
    changes, options = CASES[name]
    base = make_tiny(tmp_path / "base", num_hidden_layers=3, **changes)
    adapter = make_mlx_lm(tmp_path / "adapter", base.path, **options)
    ids = random_ids(40)
    reference = adapter.logits(ids)
    assert difference(base.logits(ids), reference) > 0.05  # the adapter matters
    assert difference(mlx_logits(_adapted(base.path, adapter.path), ids), reference) < 1e-4


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_an_export_has_the_adapter_fused(dialect: str, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", hidden_size=96)
    adapter = make_mlx_lm(tmp_path / "adapter", base.path, keys=LINEARS, dora=True)
    checkpoint = _adapted(base.path, adapter.path)
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect=dialect)
    ids = random_ids(40)
    assert difference(run(ids)[0], adapter.logits(ids)) < 1e-4


def test_a_quantized_base_is_that_of_mlx_lm(tmp_path: Path) -> None:
    """QLoRA: what was quantized and is not adapted stays so; mlx-lm dequantizes nothing."""
    base = _quantized(tmp_path / "base", {"model.layers.1.self_attn.q_proj": {"bits": 8}})
    keys = ["self_attn.q_proj", "mlp.down_proj", "model.embed_tokens"]
    adapter = make_mlx_lm(tmp_path / "adapter", base, keys=keys)
    ids = random_ids(40)
    reference = adapter.logits(ids)
    checkpoint = _adapted(base, adapter.path)
    assert difference(mlx_logits(checkpoint, ids), reference) < 1e-4
    layers = load_decoder(checkpoint).model.layers
    kinds = [type(layer.self_attn.q_proj) for layer in layers]
    assert kinds == [nn.QuantizedLinear, nn.Linear, nn.Linear]
    assert all(isinstance(layer.self_attn.k_proj, nn.QuantizedLinear) for layer in layers)
    run = export_and_open(checkpoint, tmp_path / "out", weights="q4", exact=True)
    quantized = load_decoder(checkpoint, mx.float32)
    quantize_decoder(quantized, "q4")
    assert difference(run(ids)[0], mlx_logits(quantized, ids)) < 1e-4


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
def test_stacked_experts_are_fused_as_mlx_lm_fuses_them(quantized: bool, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.switch_mlp.up_proj"
    layer = SwitchLinear(input_dims=64, output_dims=48, num_experts=3, bias=False)
    layer = layer.to_quantized(group_size=32, bits=4) if quantized else layer
    lora = LoRASwitchLinear.from_base(layer, r=4, scale=1.5)
    lora.lora_b = mx.random.normal(lora.lora_b.shape)
    path = tmp_path / "adapter"
    path.mkdir()
    factors = {f"{name}.lora_a": lora.lora_a, f"{name}.lora_b": lora.lora_b}
    mx.save_safetensors(str(path / "adapters.safetensors"), factors)
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 1.5}}
    (path / "adapter_config.json").write_text(json.dumps(config))
    before = {f"{name}.{leaf}": array for leaf, array in tree_flatten(layer.parameters())}
    fused = apply_adapter(before, read_adapter(path))
    assert fused.keys() == {f"{name}.weight"}
    wanted = lora.fuse(dequantize=True).weight
    assert mx.allclose(fused[f"{name}.weight"], wanted, atol=1e-5)


def _quantized(folder: Path, settings: dict[str, dict[str, int]]) -> Path:
    """A 4-bit checkpoint, some layers with settings of their own, as mlx-lm writes it."""
    base = make_tiny(folder, hidden_size=96, intermediate_size=160)
    model, config = load_model(base.path)

    def choose(path: str, module: nn.Module) -> bool | dict[str, int]:
        return settings.get(path, hasattr(module, "to_quantized"))

    settings = {path: {"group_size": 32, **value} for path, value in settings.items()}
    model, config = quantize_model(model, config, 32, 4, quant_predicate=choose)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    return folder


def _adapted(base: Path, adapter: Path) -> Checkpoint:
    return with_adapter(open_checkpoint(base), adapter)
