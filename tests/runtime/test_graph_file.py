"""Our reader of .onnx files against the `onnx` package, and on damaged files."""

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pippin.runtime.errors import InputError
from pippin.runtime.graph_file import ExternalTensor, GraphFile, read_graph_file
from support.graphs import write_folder


def by_onnx(path) -> GraphFile:
    model = onnx.load(path, load_external_data=False)
    external = []
    for tensor in model.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location == TensorProto.EXTERNAL:
            length = int(place["length"]) if "length" in place else None
            at = (place["location"], int(place.get("offset", 0)), length)
            external.append(ExternalTensor(tensor.name, *at))
    operators = {name: node.op_type for node in model.graph.node for name in node.output}
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return GraphFile(tuple(external), operators, metadata)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("graph")) / "onnx" / "model.onnx"


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_it_reads_what_onnx_reads(dialect, tmp_path):
    path = write_folder(tmp_path, dialect=dialect) / "onnx" / "model.onnx"
    found = read_graph_file(path)
    assert found == by_onnx(path)
    assert found.external
    assert "MatMul" in found.operators.values()


def test_places_without_offset_or_length(tmp_path):
    tensor = numpy_helper.from_array(numpy_helper.to_array(helper.make_tensor("w", 1, [1], [0.0])))
    tensor.name = "w"
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    node = helper.make_node("Identity", ["w"], ["y"])
    output = helper.make_tensor_value_info("y", 1, [1])
    model = helper.make_model(helper.make_graph([node], "g", [], [output], [tensor]))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert read_graph_file(path).external == (ExternalTensor("w", "weights.bin", 0, None),)
    assert read_graph_file(path) == by_onnx(path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_harmless(data, graph, tmp_path_factory):
    """A part of the file, or one with a byte changed, ends in InputError or is read."""
    content = bytearray(graph.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(content)
    try:
        complaint = "" if read_graph_file(path).operators else "no operators"
    except InputError as error:
        complaint = str(error)
    assert not complaint or f"{path}: it is no whole ONNX model" in complaint
    assert "\n" not in complaint


@given(content=st.binary(max_size=200))
def test_other_files_are_no_graphs(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.onnx: it is no whole ONNX model"):
        read_graph_file(path)
