"""Reading quantized checkpoints: what config.json says of a layer must be true of it."""

import json
import shutil

import mlx.core as mx
import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.dense import dense_weight
from pippin.mlx_model.families import llama
from pippin.mlx_model.families.common.weights import rename, split
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.quantize import quantize_checkpoint
from pippin.runtime.errors import InputError
from support.exported import difference, mlx_logits, random_ids
from support.quantized import load, tensors

IDS = random_ids(20)
LAYER = "model.layers.1.mlp.up_proj"


@pytest.fixture
def edited(checkpoint, tmp_path):
    """edit(**settings) -> a 4-bit folder with these changes in its config's quantization."""

    def edit(written="affine", **changes):
        folder = quantize_checkpoint(checkpoint, tmp_path / "quantized", mode=written).path
        config = json.loads((folder / "config.json").read_text())
        config["quantization"] |= changes
        del config["quantization_config"]
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return edit


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({LAYER: {"bits": 3, "group_size": 64}}, f"{LAYER} 3-bit affine .* has 4-bit affine"),
        ({LAYER: {"bits": 4, "group_size": 32}}, "groups of 32, .* groups of 64"),
        ({LAYER: {"mode": "mxfp4"}}, "4-bit mxfp4 weights in groups of 32, the"),
        ({LAYER: False}, f"{LAYER} unquantized, the checkpoint has 4-bit affine"),
        ({"model.norm": True}, "model.norm 4-bit .* has floating-point weights"),
        ({LAYER: {"bits": 4, "group_size": 64, "global_scale": True}}, f"{LAYER} = .*global_scale"),
        ({"quantize_input": "all"}, "quantize_input = 'all'"),
        ({"mode": "int4"}, "mode 'int4'; Pippin reads affine, mxfp4, nvfp4, mxfp8"),
    ],
)
def test_a_config_that_is_wrong_is_refused(changes, said, edited):
    with pytest.raises(InputError, match=said) as error:
        load(edited(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {LAYER: True},
        {LAYER: {"bits": 4, "group_size": 64}},
        {LAYER: {"bits": 4, "group_size": 64, "mode": "affine"}},
        {LAYER: {}},  # MLX's defaults
        {"model.norm": False},
        {"bits": 8, "group_size": 32},  # of the layers that are not named: the shapes know better
        {"vision_tower.layers.0.fc1": False},  # of another model's layers
    ],
)
def test_a_config_that_is_right_is_read(changes, edited):
    layer = load(edited(**changes)).model.layers[1].mlp.up_proj
    assert (layer.bits, layer.group_size, layer.mode) == (4, 64, "affine")


def test_a_mode_that_only_the_tensors_tell(edited):
    folder = edited("nvfp4", mode="affine", bits=4, group_size=64)
    assert load(folder).model.layers[0].mlp.up_proj.mode == "nvfp4"


@pytest.mark.parametrize("wrong", ["group", "dtype"])
def test_tensors_without_biases_that_fit_no_mode(wrong, edited):
    folder = edited("mxfp4")
    weights = tensors(folder)
    scales = weights[f"{LAYER}.scales"]
    wrong_scales = scales[:, :2] if wrong == "group" else scales.astype(mx.float32)
    weights[f"{LAYER}.scales"] = wrong_scales
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(InputError, match=f"{LAYER} has no biases and looks like 4-bit weights"):
        load(folder)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_fused_layers_are_quantized_as_they_are_stored(mode, checkpoint, tmp_path, monkeypatch):
    """A family that splits rows and renames: the file keeps its own names and layout."""
    source = tmp_path / "source"
    shutil.copytree(checkpoint.path, source)
    weights = dict(mx.load(str(checkpoint.path / "model.safetensors")))
    for layer in range(3):
        attention = f"model.layers.{layer}.self_attn"
        parts = [weights.pop(f"{attention}.{part}_proj.weight") for part in "qkv"]
        weights[f"{attention}.qkv_proj.weight"] = mx.concatenate(parts)
    weights["output.weight"] = weights.pop("lm_head.weight")
    mx.eval(weights)
    (source / "model.safetensors").unlink()
    mx.save_safetensors(str(source / "model.safetensors"), weights)

    def convert(weights, config):
        heads = [("q_proj", 4 * 32), ("k_proj", 2 * 32), ("v_proj", 2 * 32)]
        return rename(split(weights, "qkv_proj", heads), (r"^output\.", "lm_head."))

    plain = quantize_checkpoint(checkpoint, tmp_path / "plain", mode=mode, rules=["lm_head=8"])
    expected = mlx_logits(load(plain.path), IDS)
    monkeypatch.setattr(llama, "convert", convert, raising=False)
    for rule in ("lm_head=8", "output=8"):  # either name will do
        done = quantize_checkpoint(
            open_checkpoint(source), tmp_path / rule, mode=mode, rules=[rule]
        )
        assert done.plan["output"].bits == 8
        assert "model.layers.2.self_attn.qkv_proj.scales" in tensors(done.path)
        assert difference(mlx_logits(load(done.path), IDS), expected) == 0


@pytest.mark.parametrize("dtype", [None, mx.float32, mx.float16], ids=str)
@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_rows_of_a_table_have_the_model_s_type(mode, dtype, checkpoint, tmp_path):
    """MLX's own table gives bfloat16 in these modes, whatever the model computes in."""
    folder = quantize_checkpoint(checkpoint, tmp_path / "out", mode=mode).path
    decoder = load_decoder(open_checkpoint(folder), dtype)
    rows = decoder.model.embed_tokens(mx.array([IDS]))
    assert rows.dtype == (dtype or mx.float32)
    expected = dense_weight(decoder.model.embed_tokens)[mx.array(IDS)].astype(rows.dtype)
    assert mx.allclose(rows[0], expected, rtol=1e-3)
