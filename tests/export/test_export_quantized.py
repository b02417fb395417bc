"""Quantized graphs: parity graphs are exact, codes are taken over, nothing is out of reach."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import onnx
import pytest

from pippin.export.folder import export_folder
from pippin.export.nbits import NBits
from pippin.export.quantize import quantize_decoder
from pippin.mlx_model.load import load_decoder
from support.exported import (
    difference,
    export_and_open,
    graph_path,
    mlx_logits,
    quantized_checkpoint,
    random_ids,
    read_model,
    store,
    tiny_checkpoint,
)

TIED = {"tie_word_embeddings": True}
IDS = random_ids(40)


def check_exact(checkpoint, out, weights, dialect):
    run = export_and_open(checkpoint, out, weights=weights, dialect=dialect, exact=True)
    reference = mlx_logits(checkpoint, IDS)
    assert difference(run(IDS)[0], reference) < 1e-4
    run.reset()
    steps = np.concatenate([run([token])[0] for token in IDS])
    assert difference(steps, reference) < 1e-4


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("weights", ["q4", "int8"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_exact_for_every_width(bits, weights, dialect, tmp_path):
    changes = TIED if bits % 2 else {"attention_bias": True, "mlp_bias": True}
    checkpoint = quantized_checkpoint(tmp_path / "tiny", bits, **changes)
    if weights == "q4" and bits > 4:
        # q4 of a checkpoint with nothing below 5 bits quantizes anew; MLX can do the same.
        decoder = load_decoder(checkpoint, mx.float32)
        quantize_decoder(decoder, "q4")
        checkpoint = store(checkpoint, decoder)
    check_exact(checkpoint, tmp_path / "out", weights, dialect)


def with_biases(checkpoint, change):
    """The checkpoint with `change(rng, scales, biases)` for each layer's biases and scales."""
    decoder = load_decoder(checkpoint, mx.float32)
    rng = np.random.default_rng(0)
    for _, module in decoder.named_modules():
        if "scales" in module:
            pair = change(rng, np.array(module.scales), np.array(module.biases))
            module.scales, module.biases = (mx.array(x.astype(np.float32)) for x in pair)
    return store(checkpoint, decoder)


def fractional(rng, scales, biases):
    """Zero points anywhere between two integers, as in GGUF's Q4_1."""
    return scales, biases + scales * rng.uniform(-0.5, 0.5, scales.shape)


def outside(rng, scales, biases):
    """A few zero points far outside 0…15."""
    return scales, biases + 40 * scales * (rng.random(scales.shape) < 0.01)


def constant(rng, scales, biases):
    """Groups that are one value throughout: their scale is 0."""
    return scales * (rng.random(scales.shape) > 0.05), biases


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("weights", ["q4", "int8"])
@pytest.mark.parametrize("change", [fractional, outside, constant])
@pytest.mark.parametrize("tied", [False, True])
def test_exact_for_any_zero_point(tied, change, weights, dialect, tmp_path):
    checkpoint = quantized_checkpoint(tmp_path / "tiny", 4, tie_word_embeddings=tied)
    check_exact(with_biases(checkpoint, change), tmp_path / "out", weights, dialect)


@pytest.mark.parametrize("change", [fractional, outside])
def test_shipped_graphs_keep_residuals(change, tmp_path, monkeypatch):
    checkpoint = with_biases(quantized_checkpoint(tmp_path / "tiny", 4), change)
    reference = mlx_logits(checkpoint, IDS)
    kept = divergence(reference, export_and_open(checkpoint, tmp_path / "a")(IDS)[0])
    monkeypatch.setattr(NBits, "needs_residual", False)
    dropped = divergence(reference, export_and_open(checkpoint, tmp_path / "b")(IDS)[0])
    assert kept < 1e-2
    assert dropped > 5 * kept


def divergence(a, b):
    """Mean KL(a ‖ b) of rows of logits, nats."""
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (a - a.max(), b - b.max()))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_codes_are_taken_over_byte_for_byte(tmp_path):
    checkpoint = quantized_checkpoint(tmp_path / "tiny", 4)
    weights = checkpoint.load_weights()
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4")
    model = onnx.load(graph_path(folder))
    found = {t.name: t.raw_data for t in model.graph.initializer}
    for layer in ("mlp.up_proj", "self_attn.o_proj"):
        name = f"model.layers.1.{layer}.weight"
        assert found[name] == bytes(np.array(weights[name]).tobytes())
    attention = "model.layers.0.self_attn"
    parts = [np.array(weights[f"{attention}.{x}_proj.weight"]).tobytes() for x in "qkv"]
    assert found[f"{attention}.qkv_proj.weight"] == b"".join(parts)


def test_zero_points_are_integers(tmp_path):
    checkpoint = with_biases(quantized_checkpoint(tmp_path / "tiny", 4), fractional)
    model = read_model(export_folder(checkpoint, tmp_path / "out", weights="q4"))
    types = {t.name: t.data_type for t in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert products
    for node in products:
        if len(node.input) > 3 and node.input[3]:
            assert types[node.input[3]] == onnx.TensorProto.UINT8


def test_layers_of_different_widths_are_not_packed(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    decoder = load_decoder(checkpoint, mx.float32)
    nn.quantize(
        decoder,
        class_predicate=lambda path, m: (
            {"group_size": 32, "bits": 6 if "v_proj" in path else 4}
            if hasattr(m, "to_quantized")
            else False
        ),
    )
    checkpoint = store(checkpoint, decoder)
    check_exact(checkpoint, tmp_path / "out", "q4", "gqa")
    names = {node.name for node in read_model(tmp_path / "out").graph.node}
    assert "model.layers.0.self_attn.v_proj/MatMulNBits" in names


@pytest.mark.parametrize("weights", ["q4", "int8"])
def test_what_the_exporter_quantizes_mlx_can_run(weights, tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    decoder = load_decoder(checkpoint, mx.float32)
    quantize_decoder(decoder, weights)
    run = export_and_open(checkpoint, tmp_path / "out", weights=weights, exact=True)
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4


def test_bfloat16_weights_get_integer_zero_points(tmp_path):
    """They are quantized in float32: no product for residuals is needed."""
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    decoder = load_decoder(checkpoint, mx.bfloat16)
    checkpoint = store(checkpoint, decoder)
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4", exact=True)
    assert not [node for node in read_model(folder).graph.node if node.op_type == "ReduceSum"][1:]


def test_rows_that_are_no_multiple_of_a_group_stay_floats(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny", intermediate_size=71)
    decoder = load_decoder(checkpoint, mx.float32)
    quantize_decoder(decoder, "q4")
    run = export_and_open(checkpoint, tmp_path / "out", weights="q4", exact=True)
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4
    nodes = {node.name: node.op_type for node in read_model(tmp_path / "out").graph.node}
    assert "model.layers.0.mlp.down_proj/MatMul" in nodes
    assert "model.layers.0.mlp.up_proj/MatMulNBits" in nodes
