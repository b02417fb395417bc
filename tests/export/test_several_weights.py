"""Several kinds of weights in one folder, which has everything else once."""

import json

import numpy as np
import pytest

from pippin.export import folder as folder_module
from pippin.export.folder import export_folder
from pippin.export.verify import verify_folder
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.exported import random_ids, tiny_checkpoint

IDS = random_ids(30)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def test_each_graph_is_that_of_a_folder_of_its_own(checkpoint, tmp_path):
    kinds = ["q4", "fp32", "fp16", "int8"]
    out = export_folder(checkpoint, tmp_path / "all", weights=kinds)
    for weights in kinds:
        alone = export_folder(checkpoint, tmp_path / weights, weights=weights)
        for file in (alone / "onnx").iterdir():
            assert (out / "onnx" / file.name).read_bytes() == file.read_bytes()
        one, other = (OrtEngine.from_folder(f, weights=weights, threads=1) for f in (out, alone))
        np.testing.assert_array_equal(one.open().verify(IDS), other.open().verify(IDS))
    files = {path.name for path in (out / "onnx").iterdir()}
    graphs = {"model_q4", "model", "model_fp16", "model_int8"}
    second = {f"{name}_kv8.onnx" for name in ("model_q4", "model_int8")}
    assert files == {f"{g}.onnx{end}" for g in graphs for end in ("", "_data")} | second
    assert verify_folder(out).ok


def test_side_files_speak_of_all_graphs_and_genai_of_the_first(checkpoint, tmp_path):
    out = export_folder(checkpoint, tmp_path / "out", weights=["q4", "fp32", "q4"])
    stated = json.loads((out / "config.json").read_text())["transformers.js_config"]
    assert stated["dtype"] == "q4"
    assert stated["use_external_data_format"] == {"model_q4.onnx": 1, "model.onnx": 1}
    genai = json.loads((out / "genai_config.json").read_text())
    assert genai["model"]["decoder"]["filename"] == "onnx/model_q4.onnx"
    text = (out / "README.md").read_text()
    assert "`onnx/model.onnx`" in text
    assert "`onnx/model_q4.onnx`" in text


def test_progress_goes_on_from_graph_to_graph(checkpoint, tmp_path):
    seen = []
    report = lambda *pair: seen.append(pair)  # noqa: E731
    export_folder(checkpoint, tmp_path / "out", weights=["fp32", "q4"], progress=report)
    done = [pair[0] for pair in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]


def test_a_failure_at_the_second_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    write, calls = folder_module.write_graph, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(folder_module, "write_graph", failing)
    with pytest.raises(InputError, match="no space left"):
        export_folder(checkpoint, tmp_path / "out", weights=["fp32", "q4"])
    assert list(tmp_path.iterdir()) == []


def test_one_that_does_not_fit_refuses_all(checkpoint, tmp_path):
    with pytest.raises(InputError, match="with fp16 weights"):
        export_folder(checkpoint, tmp_path / "out", weights=["fp32", "fp16"], kv="fp32")
    assert list(tmp_path.iterdir()) == []
