"""llama-architecture GGUF files against llama.cpp's converter, transformers and `gguf`."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.gguf import read_gguf
from pippin.mlx_model.checkpoints.gguf_model import (
    load_weights,
    read_config,
    read_generation_config,
)
from pippin.runtime.errors import InputError
from support.llama_cpp import convert_to_gguf
from support.tiny import Tiny, make_tiny
from support.wheels import smollm2_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gqa, biases": {"attention_bias": True, "mlp_bias": True},
    "mha, tied": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "wide heads": {"head_dim": 32, "hidden_size": 96, "intermediate_size": 64},
    "llama3": {"rope_parameters": LLAMA3, "head_dim": 16, "rms_norm_eps": 1e-5},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tiny, Path]]:
    folder = tmp_path_factory.mktemp("llama")
    models = {
        name: make_tiny(folder / f"m{number}", seed=number, **changes)
        for number, (name, changes) in enumerate(CONFIGS.items())
    }
    paths = convert_to_gguf([model.path for model in models.values()], "f32")
    return dict(zip(models, zip(models.values(), paths, strict=True), strict=True))


def state(model: Tiny) -> dict[str, np.ndarray]:
    arrays = {name: p.detach().numpy() for name, p in model.reference.named_parameters()}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_those_that_were_converted(
    converted: dict[str, tuple[Tiny, Path]], name: str
) -> None:
    model, path = converted[name]
    ours, theirs = load_weights(read_gguf(path)), state(model)
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        np.testing.assert_array_equal(np.array(ours[key]), array, err_msg=key)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_that_of_the_model(converted: dict[str, tuple[Tiny, Path]], name: str) -> None:
    model, path = converted[name]
    theirs, ours = model.reference.config.to_dict(), read_config(read_gguf(path))
    rope = theirs["rope_parameters"]
    assert ours["architectures"] == ["LlamaForCausalLM"]
    assert ours["rope_theta"] == rope["rope_theta"]
    scaling = ours.pop("rope_scaling")
    if rope["rope_type"] == "linear":
        assert scaling == {"rope_type": "linear", "factor": 4.0}
    elif rope["rope_type"] == "default":
        assert scaling is None
    for key in set(ours) - {"architectures", "rope_theta"}:
        assert ours[key] == theirs[key], key


def test_llama3_factors_give_the_frequencies_of_transformers(
    converted: dict[str, tuple[Tiny, Path]],
) -> None:
    model, path = converted["llama3"]
    scaling = read_config(read_gguf(path))["rope_scaling"]
    assert scaling["rope_type"] == "custom"
    plain = 500000.0 ** -(np.arange(0, 16, 2) / 16)
    wanted = model.reference.model.rotary_emb.inv_freq.numpy()
    assert max(scaling["factors"]) == 8.0
    np.testing.assert_allclose(plain / scaling["factors"], wanted, rtol=1e-6)


def test_quantized_rows_are_put_back_in_order(tmp_path: Path) -> None:
    model = make_tiny(
        tmp_path / "q", hidden_size=96, intermediate_size=64, head_dim=16, attention_bias=True
    )
    [path] = convert_to_gguf([model.path], "q8_0")
    ours, theirs = load_weights(read_gguf(path)), state(model)
    quantized = [name for name, array in theirs.items() if array.ndim == 2]
    assert len(quantized) == 3 * 7 + 2
    for name in quantized:
        base = name.removesuffix("weight")
        scales, biases = (ours[base + leaf].astype(mx.float32) for leaf in ("scales", "biases"))
        values = mx.dequantize(ours[name], scales, biases, group_size=32, bits=8)
        type_ = GGMLQuantizationType.Q8_0
        wanted = dequantize(quantize(theirs[name], type_), type_)
        np.testing.assert_array_equal(np.array(values), wanted, err_msg=name)


def test_smollm2() -> None:
    path = smollm2_gguf()
    file = read_gguf(path)
    config = read_config(file)
    assert (
        config
        | {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "rms_norm_eps": 1e-05,
            "rope_theta": 100000.0,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "vocab_size": 49152,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        == config
    )
    weights = load_weights(file)
    reader = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for ours, theirs, heads, bits in [
        ("model.embed_tokens", "token_embd", None, 8),
        ("model.layers.0.self_attn.q_proj", "blk.0.attn_q", 9, 4),
        ("model.layers.29.self_attn.k_proj", "blk.29.attn_k", 3, 4),
        ("model.layers.7.self_attn.v_proj", "blk.7.attn_v", None, 4),
        ("model.layers.11.mlp.down_proj", "blk.11.ffn_down", None, 4),
    ]:
        tensor = reader[f"{theirs}.weight"]
        wanted = dequantize(tensor.data[:1000], tensor.tensor_type)
        if heads:  # llama.cpp keeps a head's two halves interleaved
            split = wanted.reshape(heads, 32, 2, 576)
            wanted = np.concatenate([split[:, :, 0], split[:, :, 1]], axis=1).reshape(-1, 576)
        leaves = [weights[f"{ours}.{leaf}"][:1000] for leaf in ("weight", "scales", "biases")]
        scales, biases = (leaf.astype(mx.float32) for leaf in leaves[1:])
        values = mx.dequantize(leaves[0], scales, biases, group_size=32, bits=bits)
        np.testing.assert_array_equal(np.array(values), wanted, err_msg=ours)


SMALL: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 8,
    "block_count": 1,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def write_small(
    path: Path,
    changes: dict[str, Any] | None = None,
    *,
    arch: str = "llama",
    general: dict[str, Any] | None = None,
    tensors: tuple[str, ...] = ("token_embd.weight",),
) -> Path:
    """A file with just enough in it for a config; `changes` of None drop a key."""
    writer = GGUFWriter(path, arch)
    keys = {f"llama.{key}": value for key, value in {**SMALL, **(changes or {})}.items()}
    for key, value in {**keys, **(general or {})}.items():
        if value is not None:
            kind = {bool: "bool", int: "uint32", float: "float32", str: "string"}
            getattr(writer, f"add_{kind.get(type(value), 'array')}")(key, value)
    for name in tensors:
        shape = (4,) if name == "rope_freqs.weight" else (8, 8)
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_keys_that_say_nothing_or_off_are_fine(tmp_path: Path) -> None:
    harmless = {
        "attention.head_count": [2, 2],
        "attention.causal": True,
        "expert_count": 0,
        "attention.sliding_window": 0,
        "logit_scale": 0.0,
        "rope.scaling.type": "none",
        "rope.scaling.factor": 4.0,
        "rope.scaling.finetuned": True,
        "tensor_data_layout": "Meta AI original pth",
    }
    config = read_config(read_gguf(write_small(tmp_path / "x.gguf", harmless)))
    assert config["rope_scaling"] is None
    assert config["num_attention_heads"] == config["num_key_value_heads"] == 2


def test_yarn(tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_beta_fast": 24.0,
    }
    config = read_config(read_gguf(write_small(tmp_path / "x.gguf", keys)))
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 24.0,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_shared_count": 1}, r"has llama.expert_shared_count, which is not implemented"),
        ({"attention.sliding_window": 4096}, r"llama.attention.sliding_window, which is not"),
        ({"logit_scale": 0.5, "x": 1}, r"llama.logit_scale, llama.x, which is not implemented"),
        ({"attention.causal": False}, r"llama.attention.causal = False; only True"),
        ({"rope.dimension_count": 2}, r"llama.rope.dimension_count = 2; only 4 is implemented"),
        ({"attention.value_length": 8}, r"llama.attention.value_length = 8; only 4"),
        ({"rope.scaling.attn_factor": 1.5}, r"llama.rope.scaling.attn_factor = 1.5; only 1.0"),
        ({"attention.head_count": [2, 4]}, r"attention.head_count = \[2, 4\], expected one int"),
        ({"attention.head_count": 0}, r"attention.head_count = 0, expected at least 1"),
        ({"attention.head_count": "two"}, r"attention.head_count = 'two', expected one int"),
        ({"context_length": None}, r"lacks the key 'llama.context_length'"),
    ],
)
def test_what_changes_the_output_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_small(tmp_path / "x.gguf", changes)
    with pytest.raises(InputError, match=message):
        read_config(read_gguf(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "mamba"}, r"GGUF architecture 'mamba'; Pippin reads llama, qwen2, "),
        ({"general": {"general.type": "adapter"}}, r"holds a GGUF 'adapter', expected a model"),
        ({"general": {"split.count": 3}}, r"is one of 3 parts; join them"),
        ({"tensors": ()}, r"has a vocabulary but no weights"),
        ({"tensors": ("output.weight",)}, r"has no tensor 'token_embd.weight'"),
    ],
)
def test_files_that_are_no_llama_model(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = write_small(tmp_path / "x.gguf", **options)
    with pytest.raises(InputError, match=message):
        read_config(read_gguf(path))


def test_two_kinds_of_rope_scaling_at_once(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    tensors = ("token_embd.weight", "rope_freqs.weight")
    path = write_small(tmp_path / "x.gguf", keys, tensors=tensors)
    with pytest.raises(InputError, match=r"linear RoPE scaling and rope_freqs.weight at once"):
        read_config(read_gguf(path))


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.0.attn_q.scale", "extra"])
def test_unknown_tensors_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write_small(tmp_path / "x.gguf", tensors=("token_embd.weight", name))
    with pytest.raises(InputError, match=rf"has the tensor '{name}', which is not implemented"):
        load_weights(read_gguf(path))


def test_rows_that_do_not_split_into_heads(tmp_path: Path) -> None:
    path = write_small(
        tmp_path / "x.gguf", {"attention.head_count": 3}, tensors=("blk.0.attn_q.weight",)
    )
    with pytest.raises(InputError, match=r"8 rows in 'blk.0.attn_q.weight', .* 2 × 3"):
        load_weights(read_gguf(path))


def test_stop_tokens_and_sampling_become_the_generation_config(tmp_path: Path) -> None:
    general = {
        "tokenizer.ggml.eos_token_id": 7,
        "tokenizer.ggml.eot_token_id": 3,
        "tokenizer.ggml.eom_token_id": 7,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    file = read_gguf(write_small(tmp_path / "x.gguf", general=general))
    assert read_generation_config(file) == {
        "eos_token_id": [3, 7],
        "temperature": 0.6,
        "top_k": 20,
    }
    assert read_config(file)["eos_token_id"] == 7


@settings(max_examples=400, deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    general = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 3}
    tensors = ("token_embd.weight", "rope_freqs.weight", "blk.0.attn_q.weight", "output.weight")
    path = tmp_path_factory.mktemp("g") / "x.gguf"
    write_small(path, general=general, tensors=tensors)
    header = min(tensor.offset for tensor in read_gguf(path).tensors.values())
    data = bytearray(path.read_bytes())
    for position, value in damage:
        data[position % header] = value
    path.write_bytes(data)
    message = ""
    try:
        file = read_gguf(path)
        read_config(file)
        read_generation_config(file)
        mx.eval(load_weights(file))
    except InputError as error:
        message = str(error)
    assert "\n" not in message
