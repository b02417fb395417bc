"""Exported folders: which graph is chosen, and what is said when something is not there."""

import json

import pytest

from pippin.runtime.errors import InputError
from pippin.runtime.folder import SUFFIXES, open_folder
from support.graphs import write_folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


def add_weights(folder, *names):
    for name in names:
        for end in (".onnx", ".onnx_data"):
            (folder / "onnx" / f"model{SUFFIXES[name]}{end}").write_bytes(b"x")


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
    for name, suffix in SUFFIXES.items():
        assert open_folder(folder, name).graph.name == f"model{suffix}.onnx"


def test_weights_that_are_not_there(folder):
    with pytest.raises(InputError, match="no q4 weights; it has fp32"):
        open_folder(folder, "q4")
    with pytest.raises(InputError, match="none of fp32, fp16, q4"):
        open_folder(folder, "q5")


@pytest.mark.parametrize("stated", [{"model.onnx": 3}, {"model": 3}, 3])
def test_a_missing_data_file_is_named(folder, stated):
    config = json.loads((folder / "config.json").read_text())
    config["transformers.js_config"] = {"use_external_data_format": stated}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "onnx" / "model.onnx_data_1").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.onnx_data_2 is missing, one of 3"):
        open_folder(folder)
    (folder / "onnx" / "model.onnx_data_2").write_bytes(b"")
    assert len(open_folder(folder).data) == 3


def test_data_files_are_counted_when_the_config_does_not_say(folder):
    (folder / "config.json").write_text("{}")
    (folder / "onnx" / "model.onnx_data_1").write_bytes(b"")
    assert len(open_folder(folder).data) == 2


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
    with pytest.raises(InputError, match=r"onnx/model\*\.onnx"):
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
