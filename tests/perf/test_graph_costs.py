"""What a graph is said to read and multiply, beside what the checkpoint's own tensors say."""

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pippin.apps.graph_costs import GraphCosts, LayerCost, graph_costs
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.exported import graph_path, quantized_checkpoint, tiny_checkpoint
from support.tiny import make_tiny

VOCAB = 97


def linear_shapes(folder: Path) -> list[tuple[int, ...]]:
    """Of all linear layers but the vocabulary's, by the file's own header."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "numpy") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return [shape for name, shape in shapes.items() if name.endswith("_proj.weight")]


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_float_weights(dialect: str, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "in", hidden_size=96)
    out = export_folder(checkpoint, tmp_path / "out", weights="fp32", dialect=dialect)
    costs = graph_costs(graph_path(out))
    products = sum(map(prod, linear_shapes(tmp_path / "in")))
    assert (costs.fp32, costs.int8) == (products, 0)
    assert costs.weight_bytes == 4 * (products + VOCAB * 96)


def test_packed_weights(tmp_path: Path) -> None:
    """4 bits each, and for every 32 a float32 scale and, at most, 4 bits more."""
    checkpoint = quantized_checkpoint(tmp_path / "in", 4)
    float_products = sum(map(prod, linear_shapes(tiny_checkpoint(tmp_path / "float").path)))
    out = export_folder(checkpoint, tmp_path / "out", weights="q4")
    path = graph_path(out)
    costs = graph_costs(path)
    assert costs.fp32 + costs.int8 >= float_products, "a sum for each group may be added"
    assert costs.fp32 + costs.int8 < 1.2 * float_products
    assert costs.weight_bytes > float_products * (4 + 32 / 32) / 8
    assert costs.weight_bytes < 2 * (float_products + VOCAB * 96)
    assert with_level(path, 4, tmp_path).int8 == costs.fp32 + costs.int8
    assert with_level(path, 1, tmp_path).fp32 == costs.fp32 + costs.int8


def with_level(path: Path, level: int, folder: Path) -> GraphCosts:
    """The costs of the same graph with all MatMulNBits at that accuracy level."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = level
    onnx.save(model, folder / "level.onnx")
    return graph_costs(folder / "level.onnx")


def test_a_window_bounds_what_is_read(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "in", "Mistral", sliding_window=16, head_dim=16)
    out = export_folder(open_checkpoint(tiny.path), tmp_path / "out", weights="fp32")
    costs = graph_costs(graph_path(out))
    assert {layer.window for layer in costs.layers} == {16}
    assert costs.step_bytes(8) < costs.step_bytes(16) == costs.step_bytes(1000)


def test_cache_of_each_sequence(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "in", head_dim=16)
    out = export_folder(checkpoint, tmp_path / "out", weights="fp32")
    costs = graph_costs(graph_path(out))
    config = checkpoint.config
    heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
    key_bytes = layers * 2 * heads * 16 * 4
    assert costs.step_bytes(0) == costs.weight_bytes
    assert costs.step_bytes(10) == costs.weight_bytes + 10 * key_bytes
    assert costs.step_bytes(10, 8) == costs.weight_bytes + 80 * key_bytes


def test_seconds_of_a_prompt() -> None:
    layer = LayerCost(bytes=1, multiplications=100, window=None)
    costs = GraphCosts(weight_bytes=1, fp32=1000, int8=4000, layers=(layer, layer))
    # 2 × (1000 + 2 × 100 × 2 keys on average) at 100 a second, and 2 × 4000 at 800
    assert costs.prefill_seconds(3, 100, 800) == pytest.approx(28 + 10)


@pytest.mark.parametrize("kind", ["experts", "products in a branch"])
def test_what_is_not_known_beforehand(kind: str, tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    if kind == "experts":
        nodes = [product, helper.make_node("QMoE", ["y"], ["z"], domain="com.microsoft")]
    else:
        branch = helper.make_graph([product], "then", [], [])
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(nodes, "g", [], [], [weights])
    onnx.save(helper.make_model(graph), tmp_path / "g.onnx")
    assert graph_costs(tmp_path / "g.onnx") is None
    graph = helper.make_graph([product], "g", [], [], [weights])
    onnx.save(helper.make_model(graph), tmp_path / "plain.onnx")
    assert graph_costs(tmp_path / "plain.onnx").fp32 == 16
