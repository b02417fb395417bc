"""Folders of graphs: which one is chosen, and what is said when something is not there."""

import json
import re
import shutil

import onnx
import pytest

from pippin.runtime.errors import InputError
from pippin.runtime.folder import open_folder
from pippin.runtime.layouts import SUFFIXES, has_graph
from support.graphs import write_folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


def add_weights(folder, *names):
    for name in names:
        shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / f"model{SUFFIXES[name]}.onnx")


def edit(folder, change):
    """Apply `change` to the graph's proto, weights left where they are."""
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file, load_external_data=False)
    change(model)
    file.write_bytes(model.SerializeToString())


def test_what_is_there_is_taken(folder):
    found = open_folder(folder)
    assert found.weights == "fp32"
    assert [file.name for file in found.data] == ["model.onnx_data"]
    assert found.weight_bytes == sum(f.stat().st_size for f in (folder / "onnx").iterdir())


def test_order_of_preference_and_choice(folder):
    add_weights(folder, "q4f16", "fp16")
    assert open_folder(folder).weights == "fp32"
    add_weights(folder, "int8")
    assert open_folder(folder).weights == "int8"
    add_weights(folder, "q4")
    assert open_folder(str(folder)).weights == "q4"
    add_weights(folder, "q8", "uint8", "bnb4")
    for name, suffix in SUFFIXES.items():
        assert open_folder(folder, name).graph.name == f"model{suffix}.onnx"


def test_weights_that_are_not_there(folder):
    with pytest.raises(InputError, match="no q4 weights; it has fp32"):
        open_folder(folder, "q4")


def test_a_missing_data_file_is_named(folder):
    (folder / "onnx" / "model.onnx_data").unlink()
    with pytest.raises(InputError, match=r"model\.onnx_data is missing, one of 1 data files"):
        open_folder(folder)


def test_one_of_several_data_files(folder):
    data = folder / "onnx" / "model.onnx_data"

    def move(model):
        tensor = next(t for t in model.graph.initializer if t.name == "head")
        entry = next(e for e in tensor.external_data if e.key == "location")
        entry.value = "model.onnx_data_1"

    edit(folder, move)
    with pytest.raises(InputError, match=r"model\.onnx_data_1 is missing, one of 2 data files"):
        open_folder(folder)
    shutil.copy(data, folder / "onnx" / "model.onnx_data_1")
    found = open_folder(folder)
    assert sorted(file.name for file in found.data) == ["model.onnx_data", "model.onnx_data_1"]


def test_a_data_file_that_is_cut_off(folder):
    data = folder / "onnx" / "model.onnx_data"
    content = data.read_bytes()
    data.write_bytes(content[:5000])
    needs = rf"model\.onnx_data has 5,000 bytes where model\.onnx needs {len(content):,}"
    with pytest.raises(InputError, match=needs):
        open_folder(folder)


@pytest.mark.parametrize("location", ["../../secret", "/etc/passwd", ""])
def test_data_outside_the_folder(location, folder):
    def point(model):
        tensor = next(t for t in model.graph.initializer if t.external_data)
        next(e for e in tensor.external_data if e.key == "location").value = location

    edit(folder, point)
    with pytest.raises(InputError, match=f"keeps weights in {re.escape(repr(location))}, outside"):
        open_folder(folder)


def test_other_layouts(folder, tmp_path):
    """Without onnx/, graphs go by their names; in it, a merged decoder only where no other is."""
    onnx_folder = folder / "onnx"
    (onnx_folder / "model.onnx").rename(onnx_folder / "decoder_model_merged.onnx")
    assert open_folder(folder).graph.name == "decoder_model_merged.onnx"
    shutil.copy(onnx_folder / "decoder_model_merged.onnx", onnx_folder / "model.onnx")
    assert open_folder(folder, "fp32").graph.name == "model.onnx"

    top = tmp_path / "top"
    shutil.copytree(onnx_folder, top)
    shutil.copy(folder / "config.json", top)
    assert has_graph(top)
    assert open_folder(top).weights == "model"
    shutil.copy(top / "model.onnx", top / "model_quantized.onnx")
    assert open_folder(top).weights == "model_quantized"
    with pytest.raises(InputError, match="it has model_quantized, model, decoder_model_merged"):
        open_folder(top, "q4")


def test_the_graph_that_genai_config_names(folder, tmp_path):
    top = tmp_path / "top"
    shutil.copytree(folder / "onnx", top)
    (top / "model.onnx").rename(top / "phi-cpu-int4.onnx")
    decoder = {"filename": "phi-cpu-int4.onnx", "head_size": 16, "num_hidden_layers": 2}
    model = {"decoder": decoder, "vocab_size": 97, "context_length": 700}
    (top / "genai_config.json").write_text(json.dumps({"model": model}))
    found = open_folder(top)
    assert (found.weights, found.config_file) == ("phi-cpu-int4", "genai_config.json")
    assert found.config == {
        "vocab_size": 97,
        "max_position_embeddings": 700,
        "head_dim": 16,
        "num_hidden_layers": 2,
    }
    (top / "config.json").write_text(json.dumps({"vocab_size": 98, "hidden_size": 32}))
    both = open_folder(top)
    assert both.config_file == "config.json"
    assert both.config == found.config | {"vocab_size": 98, "hidden_size": 32}


def test_a_decoder_in_two_graphs(folder):
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / name)
    (folder / "onnx" / "model.onnx").unlink()
    assert not has_graph(folder)
    with pytest.raises(InputError, match=r"as two graphs \(decoder_model\.onnx, decoder_with_past"):
        open_folder(folder)


def test_no_folder_of_ours(folder, tmp_path):
    with pytest.raises(InputError, match="not a directory"):
        open_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        open_folder(tmp_path / "empty")
    for broken in ("{", "[]", "\x00"):
        (folder / "config.json").write_text(broken)
        with pytest.raises(InputError, match=r"config\.json"):
            open_folder(folder)
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"no onnx/model\*\.onnx or model\*\.onnx"):
        open_folder(tmp_path / "empty")


def test_the_fingerprint_changes_with_the_weights(folder, tmp_path):
    first = open_folder(folder).fingerprint()
    assert open_folder(folder).fingerprint() == first
    data = folder / "onnx" / "model.onnx_data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert open_folder(folder).fingerprint() != first
    (tmp_path / "copy").mkdir()
    again = write_folder(tmp_path / "copy" / "model")
    assert open_folder(again).fingerprint() == first
