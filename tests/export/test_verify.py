"""`verify_folder`: every kind of damage is found, and named."""

import json
import re
from pathlib import Path

import onnx
import pytest

from pippin.export.folder import export_folder
from pippin.export.verify import verify_folder
from pippin.runtime.errors import InputError
from pippin.runtime.layouts import int8_cache_path
from support.exported import graph_path, read_model, tiny_checkpoint


@pytest.fixture(params=["gqa", "standard"])
def folder(request, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    return export_folder(checkpoint, tmp_path / "out", weights="fp32", dialect=request.param)


def failure(folder):
    """The first check that fails."""
    report = verify_folder(folder)
    assert not report.ok
    check = next(check for check in report.checks if not check.ok)
    assert "\n" not in check.detail
    return check


def damage(folder):
    """The first check that finds a damaged file; nobody can use such a folder."""
    report = verify_folder(folder)
    assert report.damaged
    assert not any(verdict.works for verdict in report.consumers)
    return next(check for check in report.checks if check.damaged)


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_graph(folder, change):
    model = read_model(folder)
    change(model.graph)
    graph_path(folder).write_bytes(model.SerializeToString())


@pytest.mark.parametrize("weights", ["fp32", "fp16", "q4", "int8"])
@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_a_whole_folder_passes(weights, dialect, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny", tie_word_embeddings=True)
    out = export_folder(checkpoint, tmp_path / "out", weights=weights, dialect=dialect)
    report = verify_folder(out)
    assert report.ok
    graphs = [graph_path(out), int8_cache_path(graph_path(out))]
    assert graphs[1].is_file() == (dialect == "gqa" and weights in ("q4", "int8"))
    for graph in filter(Path.is_file, graphs):
        place = graph.relative_to(out).as_posix()
        assert [check.name for check in report.checks if check.graph == place] == [
            *("graph", "data files", "config.json", "inputs", "outputs", "cache", "tokenizer"),
            *("genai_config.json", "greedy run"),
        ]


def test_missing_data(folder):
    (folder / "onnx" / "model.onnx_data").unlink()
    check = damage(folder)
    assert check.name == "data files"
    assert "model.onnx_data is missing" in check.detail


def test_truncated_data(folder):
    path = folder / "onnx" / "model.onnx_data"
    path.write_bytes(path.read_bytes()[:-100])
    check = damage(folder)
    assert check.name == "data files"
    found, needed = path.stat().st_size, path.stat().st_size + 100
    wanted = rf"model\.onnx_data has {found:,} bytes where model\.onnx needs {needed:,}"
    assert re.search(wanted, check.detail)


def test_miscounted_data(folder):
    def change(config):
        config["transformers.js_config"]["use_external_data_format"] = {"model.onnx": 2}

    change_json(folder / "config.json", change)
    assert damage(folder).detail == "config.json counts 2 data files, model.onnx has 1"


def test_a_path_out_of_the_folder(folder):
    def change(graph):
        tensor = next(t for t in graph.initializer if t.external_data)
        tensor.external_data[0].value = "../../secret"

    change_graph(folder, change)
    assert "keeps weights in '../../secret', outside" in damage(folder).detail


def test_damaged_graph(folder):
    graph_path(folder).write_bytes(b"\xff" * 100)
    check = damage(folder)
    assert check.name == "graph"
    assert "model.onnx is no ONNX model" in check.detail


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("num_key_value_heads", 3, "cache"),
        ("head_dim", 8, "cache"),
        ("num_hidden_layers", 2, "cache"),
        ("vocab_size", 96, "outputs"),
    ],
)
def test_sizes_that_the_config_does_not_share(key, value, name, folder):
    change_json(folder / "config.json", lambda config: config.update({key: value}))
    report = verify_folder(folder)
    check = next(check for check in report.checks if check.damaged)
    assert check.name == name
    assert re.search(rf"model\.onnx has .*config\.json says {key} = {value}", check.detail)


def test_renamed_and_retyped_inputs(folder):
    def rename(graph):
        graph.input[1].name = "mask"

    original = graph_path(folder).read_bytes()
    change_graph(folder, rename)
    assert failure(folder).detail == "there is no attention_mask"
    graph_path(folder).write_bytes(original)

    def retype(graph):
        graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32

    change_graph(folder, retype)
    assert failure(folder).detail.startswith("input_ids is INT32")


def test_one_more_required_input(folder):
    change_graph(
        folder,
        lambda graph: graph.input.append(
            onnx.helper.make_tensor_value_info("extra", onnx.TensorProto.INT64, [1])
        ),
    )
    assert failure(folder).detail == "the graph also requires extra"


def test_named_head_dim(folder):
    """K and D must be numbers: consumers allocate by them."""

    def change(graph):
        cache = next(a for a in graph.input if a.name.startswith("past_key_values.0.value"))
        cache.type.tensor_type.shape.dim[3].dim_param = "head_dim"

    change_graph(folder, change)
    assert "past_key_values.0.value" in failure(folder).detail


def test_a_vocabulary_larger_than_the_model(folder):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"w{i}": i for i in range(98)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    check = damage(folder)
    assert check.name == "tokenizer"
    assert check.detail == "tokenizer.json has id 97, the model has 97 tokens"


def test_genai_config_that_names_another_graph(folder):
    def change(content):
        content["model"]["decoder"]["filename"] = "onnx/model_q4.onnx"

    change_json(folder / "genai_config.json", change)
    assert failure(folder).name == "genai_config.json"


def test_a_cache_that_forgets(folder):
    """Presents of two layers swapped: every name and shape is right, the result is not."""

    def change(graph):
        swapped = {"present.0.key": "present.1.key", "present.1.key": "present.0.key"}
        for node in graph.node:
            node.output[:] = [swapped.get(name, name) for name in node.output]

    change_graph(folder, change)
    check = failure(folder)
    assert check.name == "greedy run"
    assert "on the cache differ" in check.detail


def test_weights_that_are_not_numbers(folder):
    path = folder / "onnx" / "model.onnx_data"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert failure(folder).detail == "logits are not all finite"


@pytest.mark.parametrize("config", [None, "{}"])
def test_no_folder_at_all(config, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=r"holds no (config\.json|onnx/model\*\.onnx)"):
        verify_folder(tmp_path)
    with pytest.raises(InputError, match="not a directory"):
        verify_folder(tmp_path / "nowhere")
