"""What a graph consists of: fused nodes, names and dimensions, versions, shared tables."""

from collections import Counter

import numpy as np
import onnx
import pytest

from pippin.export.folder import export_folder
from support.exported import (
    graph_path,
    quantized_checkpoint,
    read_model,
    tiny_checkpoint,
)

# Nodes of one layer, by what its weights are.
GQA_FLOAT = {
    "SkipSimplifiedLayerNormalization": 2,
    "GroupQueryAttention": 1,
    "MatMul": 5,  # qkv, o, gate, up, down
    "QuickGelu": 1,
    "Mul": 1,
}
GQA_Q4 = {**GQA_FLOAT, "MatMulNBits": 5, "MatMul": 0}
STANDARD_FLOAT = {
    "RMSNormalization": 2,
    "RotaryEmbedding": 2,
    "Attention": 1,
    "MatMul": 7,
    "Sigmoid": 1,
    "Mul": 2,
    "Add": 2,
}


def census(tmp_path, layers, **options):
    """Nodes by type, of a model with `layers` layers."""
    name = f"{layers}-layers"
    if options.get("weights") == "q4":
        checkpoint = quantized_checkpoint(tmp_path / name, 4, num_hidden_layers=layers)
    else:
        checkpoint = tiny_checkpoint(tmp_path / name, num_hidden_layers=layers)
    folder = export_folder(checkpoint, tmp_path / f"{name}-out", **options)
    return Counter(node.op_type for node in read_model(folder).graph.node)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"weights": "fp32"}, GQA_FLOAT),
        ({"weights": "fp16"}, GQA_FLOAT),
        ({"weights": "q4"}, GQA_Q4),
        ({"weights": "fp32", "dialect": "standard"}, STANDARD_FLOAT),
    ],
)
def test_nodes_of_one_layer(options, wanted, tmp_path):
    """The difference between two layers and three is one layer, and nothing else."""
    added = census(tmp_path, 3, **options)
    added.subtract(census(tmp_path, 2, **options))
    assert {kind: n for kind, n in added.items() if n} == {k: n for k, n in wanted.items() if n}


@pytest.mark.parametrize(("dialect", "opset", "ir"), [("gqa", 21, 10), ("standard", 23, 11)])
def test_versions_are_pinned(dialect, opset, ir, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    model = read_model(export_folder(checkpoint, tmp_path / "out", dialect=dialect))
    assert model.ir_version == ir
    assert {o.domain: o.version for o in model.opset_import}[""] == opset
    foreign = {node.domain for node in model.graph.node} - {""}
    assert foreign == ({"com.microsoft"} if dialect == "gqa" else set())


@pytest.mark.parametrize("weights", ["fp32", "fp16", "q4", "int8"])
def test_standard_graphs_pass_the_checker(weights, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny", tie_word_embeddings=True)
    folder = export_folder(checkpoint, tmp_path / "out", weights=weights, dialect="standard")
    onnx.checker.check_model(str(graph_path(folder)), full_check=True)


@pytest.mark.parametrize("weights", ["fp32", "fp16", "q4"])
def test_names_types_and_dimensions(weights, tmp_path):
    """The contract of every consumer, spelled out."""
    model = read_model(
        export_folder(tiny_checkpoint(tmp_path / "tiny"), tmp_path / "out", weights=weights)
    )

    def described(args):
        return {
            arg.name: (
                onnx.TensorProto.DataType.Name(arg.type.tensor_type.elem_type),
                [d.dim_param or d.dim_value for d in arg.type.tensor_type.shape.dim],
            )
            for arg in args
        }

    kind = "FLOAT16" if weights == "fp16" else "FLOAT"
    inputs, outputs = described(model.graph.input), described(model.graph.output)
    assert inputs.pop("input_ids") == ("INT64", ["batch_size", "sequence_length"])
    assert inputs.pop("attention_mask") == ("INT64", ["batch_size", "total_sequence_length"])
    assert inputs.pop("num_logits") == ("INT64", [1])
    assert outputs.pop("logits") == ("FLOAT", ["batch_size", 1, 97])
    past = (kind, ["batch_size", 2, "past_sequence_length", 16])
    present = (kind, ["batch_size", 2, "total_sequence_length", 16])
    parts = [f"{n}.{part}" for n in range(3) for part in ("key", "value")]
    assert inputs == {f"past_key_values.{part}": past for part in parts}
    assert outputs == {f"present.{part}": present for part in parts}
    (default,) = (t for t in model.graph.initializer if t.name == "num_logits")
    assert onnx.numpy_helper.to_array(default).tolist() == [1]


def readers(model, name):
    return sorted(node.op_type for node in model.graph.node if name in node.input)


def test_a_tied_table_is_stored_once(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "float", tie_word_embeddings=True)
    model = read_model(export_folder(checkpoint, tmp_path / "a", weights="fp32"))
    assert readers(model, "model.embed_tokens.weight") == ["Gather", "Gemm"]
    checkpoint = quantized_checkpoint(tmp_path / "codes", 4, tie_word_embeddings=True)
    model = read_model(export_folder(checkpoint, tmp_path / "b", weights="q4"))
    assert readers(model, "model.embed_tokens.weight") == ["Gather", "MatMulNBits"]


def test_two_exports_are_byte_identical(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    folders = [export_folder(checkpoint, tmp_path / name) for name in ("a", "b")]
    files = [sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for f in folders]
    assert files[0] == files[1]
    assert len(files[0]) >= 5
    for name in files[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_rotation_tables_are_those_of_the_context(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    folder = export_folder(checkpoint, tmp_path / "out", weights="fp32", context=64)
    tensors = {t.name: t for t in onnx.load(graph_path(folder)).graph.initializer}
    cos = onnx.numpy_helper.to_array(tensors["cos_cache"])
    angles = np.arange(64)[:, None] * 10000.0 ** -(np.arange(0, 16, 2) / 16)
    assert cos.shape == (64, 8)
    assert np.abs(cos - np.cos(angles)).max() < 1e-5
