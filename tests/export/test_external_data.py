"""Data files beside a graph: chunks below the limit, offsets that can be mapped, exact sizes."""

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from pippin.export import external_data
from pippin.export.external_data import ExternalData, tensor_bytes
from pippin.export.folder import export_folder
from pippin.export.verify import verify_folder
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.exported import PlainRun, random_ids, tiny_checkpoint


def place(tensor):
    found = {entry.key: entry.value for entry in tensor.external_data}
    return found["location"], int(found["offset"]), int(found["length"])


def test_a_new_file_begins_at_the_limit(tmp_path):
    arrays = [np.full(n, i, np.float32) for i, n in enumerate((100, 200, 50, 900, 10))]
    with ExternalData(tmp_path / "model.onnx", limit=1500) as data:
        tensors = [data.add(f"t{i}", TensorProto.FLOAT, a.shape, [a]) for i, a in enumerate(arrays)]
    names = ["model.onnx_data", "model.onnx_data_1", "model.onnx_data_2"]
    assert [file.name for file in data.files] == names
    # 400 + 800 + 200 bytes and their alignment fit; 3,600 have a file to themselves.
    assert [place(t)[0] for t in tensors] == [names[0]] * 3 + [names[1], names[2]]
    for tensor, array in zip(tensors, arrays, strict=True):
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(tmp_path))
        assert np.array_equal(onnx.numpy_helper.to_array(tensor), array)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=8))
def test_offsets_are_aligned_and_do_not_overlap(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("data")
    with ExternalData(folder / "m.onnx") as data:
        tensors = [
            data.add(str(i), TensorProto.FLOAT, (n,), [np.ones(n, np.float32)])
            for i, n in enumerate(sizes)
        ]
    end = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        _, offset, length = place(tensor)
        assert length == 4 * size
        assert offset >= end
        assert offset % (4096 if length >= 65536 else 64) == 0
        end = offset + length
    assert (folder / "m.onnx_data").stat().st_size == end


def test_chunks_must_add_up(tmp_path):
    chunks = [np.ones(2, np.float32), np.ones(1, np.float32)]
    complaint = "takes 16 bytes, 12 were given"
    with ExternalData(tmp_path / "m.onnx") as data, pytest.raises(ValueError, match=complaint):
        data.add("t", TensorProto.FLOAT, (4,), chunks)


def test_four_bit_elements_take_half_a_byte():
    assert tensor_bytes(TensorProto.UINT4, (3, 5)) == 8
    assert tensor_bytes(TensorProto.FLOAT16, (3, 5)) == 30


def test_several_data_files_load_in_onnxruntime(tmp_path, monkeypatch):
    """As a model of more than 2 GB has them, at a limit that a tiny one passes."""
    monkeypatch.setattr(external_data, "FILE_LIMIT", 60_000)
    out = export_folder(tiny_checkpoint(tmp_path / "tiny"), tmp_path / "out", weights="fp32")
    files = sorted(file.name for file in (out / "onnx").glob("*_data*"))
    assert len(files) > 10
    assert {"model.onnx_data", "model.onnx_data_1", "model.onnx_data_10"} <= set(files)
    config = json.loads((out / "config.json").read_text())
    counts = config["transformers.js_config"]["use_external_data_format"]
    assert counts == {"model.onnx": len(files)}
    assert verify_folder(out).ok
    monkeypatch.undo()
    one = export_folder(tiny_checkpoint(tmp_path / "tiny"), tmp_path / "one", weights="fp32")
    ids = random_ids(20)
    np.testing.assert_array_equal(PlainRun(out)(ids), PlainRun(one)(ids))
    (out / "onnx" / "model.onnx_data_7").unlink()
    with pytest.raises(InputError, match=r"model\.onnx_data_7 is missing"):
        OrtEngine.from_folder(out)
