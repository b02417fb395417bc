"""What is written is mlx-lm's format, and the weights in it are those of `mx.quantize`."""

import json

import mlx.core as mx
import pytest

from pippin.mlx_model import quantize
from pippin.mlx_model.checkpoints import gguf_model
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.checkpoints.gguf import read_gguf
from pippin.mlx_model.quantize import quantize_checkpoint
from pippin.runtime.errors import InputError
from support.byte_tokenizer import write_tokenizer
from support.exported import difference, mlx_logits, random_ids
from support.llama_cpp import convert_to_gguf
from support.quantized import (
    FORMATS,
    dequantized,
    load,
    mlx_lm_convert,
    mlx_lm_logits,
    name_of,
    tensors,
)
from support.tiny import make_tiny

IDS = random_ids(40)
MODES = [
    {"bits": 4, "group_size": 64},
    {"bits": 3, "group_size": 32},
    {"mode": "mxfp4"},
    {"mode": "nvfp4"},
    {"mode": "mxfp8"},
]


def settings(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"]
    return config["quantization"]


def check_equal(ours, theirs):
    """The same names, types and bytes."""
    ours, theirs = tensors(ours), tensors(theirs)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert mx.array_equal(array, theirs[name]), name


@pytest.mark.parametrize("wanted", FORMATS, ids=name_of)
def test_logits_are_those_of_the_dequantized_weights(wanted, tiny_factory, checkpoint, tmp_path):
    """transformers computes with what mx.dequantize makes of the file."""
    import torch

    options = {"bits": wanted.bits, "group_size": wanted.group_size, "mode": wanted.mode}
    folder = quantize_checkpoint(checkpoint, tmp_path / "out", **options).path
    decoder = load(folder)
    layer = decoder.model.layers[1].mlp.down_proj
    assert (layer.bits, layer.group_size, layer.mode) == tuple(options.values())
    reference = tiny_factory().reference
    original = {name: w.clone() for name, w in reference.state_dict().items()}
    dense = {name: torch.tensor(w) for name, w in dequantized(folder, decoder).items()}
    try:
        reference.load_state_dict(dense, strict=True)
        logits = tiny_factory().logits(IDS)
    finally:
        reference.load_state_dict(original)
    assert difference(mlx_logits(decoder, IDS), logits) < 1e-4
    if wanted.bits == 8 and wanted.mode == "affine":
        assert difference(logits, tiny_factory().logits(IDS)) < 0.1


@pytest.mark.parametrize("options", MODES, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mlx_lm_writes_the_same_bytes(options, dtype, tiny_factory, tmp_path):
    tiny = tiny_factory(attention_bias=True)
    source = tmp_path / "source"
    import torch

    tiny.reference.to(getattr(torch, dtype)).save_pretrained(source)
    tiny.reference.float()
    ours = quantize_checkpoint(open_checkpoint(source), tmp_path / "ours", **options).path
    plain = {"bits": None, "group_size": None} | options
    theirs = mlx_lm_convert(source, tmp_path / "theirs", **plain)
    check_equal(ours, theirs)
    assert settings(ours) == settings(theirs)
    index = "model.safetensors.index.json"
    assert json.loads((ours / index).read_text()) == json.loads((theirs / index).read_text())


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
def test_recipes_are_those_of_mlx_lm(recipe, tiny_factory, tmp_path):
    source = tiny_factory(num_hidden_layers=9).path
    ours = quantize_checkpoint(open_checkpoint(source), tmp_path / "ours", recipe=recipe).path
    theirs = mlx_lm_convert(source, tmp_path / "theirs", recipe=recipe, bits=None, group_size=64)
    check_equal(ours, theirs)
    assert difference(mlx_logits(load(ours), IDS), mlx_logits(load(theirs), IDS)) == 0


def test_a_recipe_spares_the_table_that_is_the_head(tiny_factory, tmp_path):
    source = open_checkpoint(tiny_factory(tie_word_embeddings=True).path)
    done = quantize_checkpoint(source, tmp_path / "out", recipe="mixed_3_6")
    assert done.plan["model.embed_tokens"].bits == 6
    assert done.plan["model.layers.0.self_attn.q_proj"].bits == 3


RULES = [
    ("*v_proj=6:32", "*.1.*=8", "lm_head=float"),
    ("*=mxfp8", "*mlp*=3", "model.embed_tokens=float", "*o_proj=nvfp4"),
]


@pytest.mark.parametrize("rules", RULES, ids=["affine", "modes"])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_rules_for_single_layers(rules, mode, checkpoint, tmp_path):
    """They come back as they were written, and mlx-lm reads them alike."""
    done = quantize_checkpoint(checkpoint, tmp_path / "out", mode=mode, rules=rules)
    decoder = load(done.path)
    for path, module in decoder.named_modules():
        if path in done.plan:
            wanted = done.plan[path]
            got = (module.bits, module.group_size, module.mode) if "scales" in module else None
            assert got == (wanted and (wanted.bits, wanted.group_size, wanted.mode)), path
    if mode == "affine" and rules == RULES[0]:
        attention = "model.layers.{}.self_attn.v_proj".format
        assert (done.plan[attention(0)].bits, done.plan[attention(0)].group_size) == (6, 32)
        assert done.plan[attention(1)].bits == 8
        assert done.plan["lm_head"] is None
    assert difference(mlx_logits(decoder, IDS), mlx_lm_logits(done.path, IDS)) < 1e-4


@pytest.mark.parametrize("options", MODES, ids=lambda o: "-".join(map(str, o.values())))
def test_mlx_lm_says_the_same(options, tiny_factory, tmp_path):
    source = open_checkpoint(tiny_factory(tie_word_embeddings=True, mlp_bias=True).path)
    folder = quantize_checkpoint(source, tmp_path / "out", **options).path
    assert difference(mlx_logits(load(folder), IDS), mlx_lm_logits(folder, IDS)) < 1e-4


def test_several_files(checkpoint, tmp_path, monkeypatch):
    whole = quantize_checkpoint(checkpoint, tmp_path / "whole").path
    monkeypatch.setattr(quantize, "_SHARD_BYTES", 60_000)
    done = []
    parts = quantize_checkpoint(
        checkpoint, tmp_path / "parts", progress=lambda at, total: done.append((at, total))
    ).path
    files = sorted(file.name for file in parts.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 3
    assert max((parts / file).stat().st_size for file in files) < 70_000
    check_equal(whole, parts)
    assert difference(mlx_lm_logits(parts, IDS), mlx_lm_logits(whole, IDS)) == 0
    assert done[-1][0] == done[-1][1] == sum(a.nbytes for a in tensors(parts).values())


def test_no_more_than_one_file_is_held(tiny_factory, tmp_path, monkeypatch):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    source = tiny_factory(**sizes, num_hidden_layers=8).path
    limit = 400_000
    monkeypatch.setattr(quantize, "_SHARD_BYTES", limit)
    held, largest = mx.get_active_memory(), 512 * 256 * 4
    mx.reset_peak_memory()
    quantize_checkpoint(open_checkpoint(source), tmp_path / "out")
    peak = mx.get_peak_memory() - held
    assert peak < limit + 2 * largest
    assert peak < 0.1 * (source / "model.safetensors").stat().st_size


def test_files_beside_the_weights_are_taken_along(tmp_path):
    source = make_tiny(tmp_path / "tiny", hidden_size=96, intermediate_size=160).path
    write_tokenizer(source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "LICENSE").write_text("free")
    (source / "pytorch_model.bin").write_text("weights")
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(tensors(source), "model.safetensors")})
    )
    folder = quantize_checkpoint(open_checkpoint(source), tmp_path / "out", group_size=32).path
    assert {file.name for file in folder.iterdir()} == {
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    again = open_checkpoint(folder)
    assert again.tokenizer_json == open_checkpoint(source).tokenizer_json
    assert again.tokenizer_config["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize("same", [True, False])
def test_a_head_stored_beside_a_tied_table(same, tiny_factory, tmp_path):
    """One that repeats the table is left out; another is kept, and used."""
    tiny = tiny_factory(tie_word_embeddings=True)
    source = tmp_path / "source"
    tiny.reference.save_pretrained(source)
    weights = tensors(source)
    table = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = table if same else table[::-1]
    mx.eval(weights)
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    folder = quantize_checkpoint(open_checkpoint(source), tmp_path / "out", bits=8).path
    assert ("lm_head.weight" in tensors(folder)) != same
    logits, before = mlx_logits(load(folder), IDS), mlx_logits(load(source), IDS)
    assert difference(logits, before) < 0.1


def test_layers_whose_rows_no_group_divides_stay_floats(tmp_path):
    sizes = {"hidden_size": 96, "intermediate_size": 160}
    source = open_checkpoint(make_tiny(tmp_path / "tiny", **sizes).path)
    done = quantize_checkpoint(source, tmp_path / "out", group_size=32, rules=["*v_proj=4:64"])
    narrow = [f"model.layers.{n}.self_attn.v_proj" for n in range(3)]
    assert done.too_narrow == dict.fromkeys(narrow, 96)
    assert {path for path, wanted in done.plan.items() if wanted is None} == set(narrow)
    assert {path for path, said in settings(done.path).items() if said is False} == set(narrow)
    assert difference(mlx_logits(load(done.path), IDS), mlx_lm_logits(done.path, IDS)) < 1e-4


def test_quantized_again(checkpoint, tmp_path):
    """From 4 to 8 bits little is lost, and what has its format already is not touched."""
    four = quantize_checkpoint(checkpoint, tmp_path / "four", group_size=32).path
    options = {"requantize": True, "group_size": 32}
    same = quantize_checkpoint(open_checkpoint(four), tmp_path / "same", **options).path
    check_equal(four, same)
    eight = quantize_checkpoint(open_checkpoint(four), tmp_path / "eight", bits=8, **options).path
    assert load(eight).model.layers[0].mlp.up_proj.bits == 8
    assert difference(mlx_logits(load(eight), IDS), mlx_logits(load(four), IDS)) < 0.05
    floats = quantize_checkpoint(
        open_checkpoint(four), tmp_path / "floats", rules=["*layers*=float"], **options
    ).path
    assert "model.layers.0.mlp.up_proj.scales" not in tensors(floats)
    assert difference(mlx_logits(load(floats), IDS), mlx_logits(load(four), IDS)) < 1e-4


def gguf_checkpoint(path):
    """A GGUF file without a vocabulary, as a checkpoint."""
    config = gguf_model.read_config(read_gguf(path))
    return Checkpoint(path, config, {}, "", {}, "0")


@pytest.mark.slow
def test_gguf(tmp_path):
    """Floats are taken; a quantized file is dequantized where that is asked for."""
    tiny = make_tiny(tmp_path / "tiny", hidden_size=192, intermediate_size=160, head_dim=32)
    options = {"bits": 8, "group_size": 32}
    (plain,) = convert_to_gguf([tiny.path], "f16")
    folder = quantize_checkpoint(gguf_checkpoint(plain), tmp_path / "a", **options).path
    assert difference(mlx_logits(load(folder), IDS), tiny.logits(IDS)) < 0.1
    assert difference(mlx_logits(load(folder), IDS), mlx_lm_logits(folder, IDS)) < 1e-4
    plain.unlink()
    (packed,) = convert_to_gguf([tiny.path], "q8_0")
    with pytest.raises(InputError, match=r"is quantized already .*Q8_0.*--requantize"):
        quantize_checkpoint(gguf_checkpoint(packed), tmp_path / "b", **options)
    options |= {"bits": 6, "requantize": True}
    folder = quantize_checkpoint(gguf_checkpoint(packed), tmp_path / "b", **options).path
    assert load(folder).model.layers[0].mlp.up_proj.bits == 6
    assert difference(mlx_logits(load(folder), IDS), tiny.logits(IDS)) < 0.3
    assert difference(mlx_logits(load(folder), IDS), mlx_lm_logits(folder, IDS)) < 1e-4
