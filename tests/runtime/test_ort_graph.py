"""Graphs that cannot be loaded or do not keep the contract end in one clear line."""

import json

import numpy as np
import onnx
import pytest

from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.graphs import Shape, reference, write_folder

IDS = list(range(40))


def refused(folder, match):
    with pytest.raises(InputError, match=match) as caught:
        OrtEngine.from_folder(folder)
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)


def edit(folder, change):
    """Apply `change` to the graph's proto, weights left where they are."""
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file, load_external_data=False)
    change(model)
    file.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("cut", [0, 10, 3000])
def test_a_truncated_graph(tmp_path, cut):
    file = write_folder(tmp_path) / "onnx" / "model.onnx"
    file.write_bytes(file.read_bytes()[:cut])
    refused(tmp_path, r"cannot load .*model\.onnx")


def test_truncated_data(tmp_path):
    file = write_folder(tmp_path) / "onnx" / "model.onnx_data"
    file.write_bytes(file.read_bytes()[:5000])
    refused(tmp_path, r"model\.onnx_data has 5,000 bytes where model\.onnx needs")


def test_missing_data_that_no_config_counts(tmp_path):
    write_folder(tmp_path, config={"transformers.js_config": None})
    (tmp_path / "onnx" / "model.onnx_data").unlink()
    refused(tmp_path, r"model\.onnx_data is missing")


def test_an_opset_too_new(tmp_path):
    write_folder(tmp_path)
    edit(tmp_path, lambda model: setattr(model.opset_import[0], "version", 99))
    refused(tmp_path, r"onnxruntime .* cannot load .*Opset 99")


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        *(("num_hidden_layers", 3, 2), ("num_key_value_heads", 4, 2), ("head_dim", 8, 16)),
        ("vocab_size", 98, 97),
    ],
)
def test_a_config_that_contradicts_the_graph(tmp_path, key, value, found):
    write_folder(tmp_path, config={key: value})
    refused(tmp_path, f"has {found} where config.json says {key} = {value}")


def test_an_input_that_nobody_feeds(tmp_path):
    write_folder(tmp_path)
    extra = onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, [1])
    edit(tmp_path, lambda model: model.graph.input.append(extra))
    refused(tmp_path, "unknown inputs: pixel_values")


def test_a_graph_without_caches_or_logits(tmp_path):
    def drop(values, name):
        values.remove(next(value for value in values if value.name == name))

    write_folder(tmp_path)
    edit(tmp_path, lambda model: drop(model.graph.output, "present.1.value"))
    refused(tmp_path, r"lacks past_key_values\.1\.value or present\.1\.value")
    write_folder(tmp_path)
    edit(tmp_path, lambda model: drop(model.graph.output, "logits"))
    refused(tmp_path, "no output logits")


def test_a_graph_with_no_context_stated(tmp_path):
    write_folder(tmp_path, metadata={}, config={"max_position_embeddings": None})
    refused(tmp_path, "states no context")


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_without_metadata_operators_tell_the_cache_and_the_config_the_context(tmp_path, dialect):
    write_folder(tmp_path, dialect=dialect, metadata={}, config={"max_position_embeddings": 123})
    engine = OrtEngine.from_folder(tmp_path)
    assert engine.info.context == 123
    session = engine.open()
    wanted = reference(Shape(), IDS)
    session.prefill(IDS[:30])
    found = session.verify(IDS[30:])
    assert np.abs(found - wanted[30:]).max() <= 1e-5 * np.abs(wanted).max()


def test_uneven_shapes(tmp_path):
    """head_dim is not hidden / heads, and every head has its own keys."""
    shape = Shape(heads=3, kv_heads=3, head_dim=32, hidden=24, layers=1)
    engine = OrtEngine.from_folder(write_folder(tmp_path, shape))
    found = engine.open().verify(IDS)
    wanted = reference(shape, IDS)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_config_that_says_less_than_the_graph(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 97}))
    assert OrtEngine.from_folder(tmp_path).info.vocab_size == 97
