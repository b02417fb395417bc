"""Experts in the graph: the node that each kind becomes, and that all of them are right."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import onnx
import pytest

from pippin.export.folder import export_folder
from pippin.export.quantize import quantize_decoder
from pippin.export.requirements import minimum_onnxruntime
from pippin.export.settings import Settings
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.experts import QuantizedExpertLinear
from pippin.mlx_model.load import load_decoder
from support.exported import (
    difference,
    export_and_open,
    graph_path,
    mlx_logits,
    random_ids,
    read_model,
    store,
)
from support.tiny import make_tiny

IDS = random_ids(40)
DIALECTS = ("gqa", "standard")
KINDS = {  # softmax, and sigmoid with a correction within groups
    "Qwen2Moe": {"num_experts": 6, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 64},
    "Glm4Moe": {
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 1.5,
    },
}


def sparse_checkpoint(folder, kind="Qwen2Moe", seed=0, **changes):
    """A random mixture of experts whose rows are multiples of 32."""
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "moe_intermediate_size": 96,
    }
    made = make_tiny(folder, kind, seed, **{**sizes, **KINDS[kind], **changes})
    return open_checkpoint(made.path)


def nodes(folder):
    return {node.name: node for node in read_model(folder).graph.node}


def mixed_by(folder):
    """The operators that mix experts."""
    return {node.op_type for node in nodes(folder).values()} & {"MoE", "QMoE", "Loop"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", ["q4", "int8"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_quantized_here_exact(dialect, weights, kind, tmp_path):
    checkpoint = sparse_checkpoint(tmp_path / "tiny", kind)
    decoder = load_decoder(checkpoint, mx.float32)
    quantize_decoder(decoder, weights)
    out = tmp_path / "out"
    run = export_and_open(checkpoint, out, weights=weights, dialect=dialect, exact=True)
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4
    assert mixed_by(out) == {"QMoE" if dialect == "gqa" else "Loop"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("mode", "bits", "group"),
    [("affine", bits, 32) for bits in (2, 3, 4)]
    + [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)],
)
def test_quantized_checkpoints_are_exact(mode, bits, group, dialect, tmp_path):
    checkpoint = quantized(sparse_checkpoint(tmp_path / "tiny"), mode, bits, group)
    run = export_and_open(checkpoint, tmp_path / "out", weights="q4", dialect=dialect, exact=True)
    decoder = load_decoder(checkpoint, mx.float32)
    quantize_decoder(decoder, "q4")
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-4
    assert any(isinstance(m, QuantizedExpertLinear) for _, m in decoder.named_modules())


def quantized(checkpoint, mode, bits, group):
    """The checkpoint with experts quantized by MLX, stored as MLX does."""
    decoder = load_decoder(checkpoint, mx.float32)
    nn.quantize(decoder, group, bits, mode=mode, class_predicate=lambda path, _: "experts." in path)
    return store(checkpoint, decoder)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_zero_points_between_integers_are_kept(dialect, tmp_path):
    checkpoint = quantized(sparse_checkpoint(tmp_path / "tiny"), "affine", 4, 32)
    decoder = load_decoder(checkpoint, mx.float32)
    rng = np.random.default_rng(0)
    for _, module in decoder.named_modules():
        if isinstance(module, QuantizedExpertLinear):
            shift = mx.array(rng.uniform(-0.5, 0.5, module.scales.shape).astype(np.float32))
            module.biases = module.biases + module.scales * shift
    checkpoint = store(checkpoint, decoder)
    out = tmp_path / "out"
    run = export_and_open(checkpoint, out, weights="q4", dialect=dialect)
    decoder = load_decoder(checkpoint, mx.float32)
    quantize_decoder(decoder, "q4")
    assert difference(run(IDS)[0], mlx_logits(decoder, IDS)) < 1e-3
    assert mixed_by(out) == {"QMoE" if dialect == "gqa" else "Loop"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_of_equal_scores_the_lower_expert_is_chosen(dialect, kind, tmp_path):
    """As MLX does; onnxruntime's MoE would choose another."""
    checkpoint = sparse_checkpoint(tmp_path / "tiny", kind)
    decoder = load_decoder(checkpoint, mx.float32)
    for block in decoder.model.layers:
        if hasattr(block.mlp, "gate"):
            for holder, name in ((block.mlp.gate, "weight"), (block.mlp, "correction")):
                if name in holder:
                    array = np.array(holder[name])
                    array[1::2] = array[::2]
                    holder[name] = mx.array(array)
    checkpoint = store(checkpoint, decoder)
    run = export_and_open(checkpoint, tmp_path / "out", weights="fp32", dialect=dialect)
    assert difference(run(IDS)[0], mlx_logits(checkpoint, IDS)) < 1e-4


def test_each_kind_of_graph_has_its_operator(tmp_path):
    checkpoint = sparse_checkpoint(tmp_path / "tiny")
    found = {
        (weights, dialect): mixed_by(
            export_folder(
                checkpoint, tmp_path / f"{weights}-{dialect}", weights=weights, dialect=dialect
            )
        )
        for weights in ("fp32", "fp16", "q4", "int8")
        for dialect in DIALECTS
    }
    loops = {("fp16", "gqa"), *((weights, "standard") for weights, _ in found)}
    assert {key for key, operators in found.items() if operators == {"Loop"}} == loops
    assert found["fp32", "gqa"] == {"MoE"}
    assert found["q4", "gqa"] == found["int8", "gqa"] == {"QMoE"}


def test_the_loop_is_plain_onnx(tmp_path):
    checkpoint = sparse_checkpoint(tmp_path / "tiny")
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4", dialect="standard")
    onnx.checker.check_model(str(graph_path(folder)), full_check=True)
    (body,) = {
        tuple(inner.domain for inner in attribute.g.node)
        for node in nodes(folder).values()
        for attribute in node.attribute
        if attribute.name == "body"
    }
    assert set(body) == {""}


def test_a_graph_asks_for_the_release_whose_operator_is_right(tmp_path):
    """Seen with the releases from 1.22 to 1.32."""
    config = load_decoder(sparse_checkpoint(tmp_path / "tiny"), mx.float32).config
    needed = {
        (weights, dialect): minimum_onnxruntime(config, Settings(weights, dialect))
        for weights in ("fp32", "q4")
        for dialect in DIALECTS
    }
    assert needed["fp32", "gqa"] == needed["fp32", "standard"] == needed["q4", "standard"] == "1.23"
    assert needed["q4", "gqa"] == "1.31"


def test_routers_are_not_quantized(tmp_path):
    checkpoint = sparse_checkpoint(tmp_path / "tiny")
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4")
    routers = [name for name in nodes(folder) if ".mlp.gate/" in name or "expert_gate/" in name]
    assert len(routers) == 4
    assert all(name.endswith("/MatMul") for name in routers)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("weights", ["fp32", "q4"])
def test_all_weights_are_let_go_when_they_are_written(weights, dialect, tmp_path):
    checkpoint, steps = sparse_checkpoint(tmp_path / "tiny"), []
    export_folder(
        checkpoint,
        tmp_path / "out",
        weights=weights,
        dialect=dialect,
        progress=lambda done, total: steps.append((done, total)),
    )
    done, total = steps[-1]
    assert 0.98 * total < done <= total  # but for biases and corrections
