"""The LSTM as a graph of ONNX's own LSTM operator."""

from pathlib import Path

import mlx.nn as nn
import numpy as np
from onnx import TensorProto

from ....export.builder import GraphBuilder, Value
from ....export.external_data import ExternalData
from ....export.graph import VERSIONS
from .networks import HIDDEN, VOCAB_SIZE, LstmModel

_END = np.iinfo(np.int64).max  # as Slice writes "to the end"


def write_lstm(model: LstmModel, path: Path) -> None:
    """Write the graph to `path`, with its weights in a data file beside it.

    Inputs: input_ids int64 [B, L]; past_hidden.N and past_cell.N float32 [1, B, h]; num_logits,
    overridable: how many of the last tokens get logits (1), 0 for all. Outputs: logits [B, ·, V],
    present_hidden.N and present_cell.N.
    """
    with ExternalData(path) as data:
        graph = GraphBuilder(data)
        _build(graph, model)
    opset, ir_version = VERSIONS["gqa"]
    written = graph.model(opset, ir_version, {"pippin.weights": "fp32"}, name="lstm")
    path.write_bytes(written.SerializeToString(deterministic=True))


def _build(graph: GraphBuilder, model: LstmModel) -> None:
    ids = graph.input("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    rows = graph.overridable("num_logits", np.array([1], dtype=np.int64))
    table = graph.array("embed_tokens", np.array(model.embed_tokens.weight))
    x = graph.op("Gather", table, ids)  # [B, L, E]
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # [L, B, E], as the operator has it
    presents = []
    for index, layer in enumerate(model.layers):
        x, present = _layer(graph, index, layer, x)
        presents += present
    start = graph.op("Neg", rows)  # −0 is the beginning, so that 0 selects all
    x = graph.op("Slice", x, start, graph.ints(_END), graph.ints(0))
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # [B, ·, h]
    head = graph.array("lm_head", np.array(model.lm_head.weight).T.copy())
    logits = graph.op("MatMul", x, head)
    graph.output("logits", logits, ["batch_size", "num_logits", VOCAB_SIZE])
    for present in presents:
        graph.output(present.name, present, [1, "batch_size", HIDDEN])


def _layer(graph: GraphBuilder, index: int, layer: nn.LSTM, x: Value) -> tuple[Value, list[Value]]:
    """One LSTM node: x [L, B, ·] → hidden states [L, B, h], and the last hidden and cell state."""
    kinds = ("hidden", "cell")
    dims = [1, "batch_size", HIDDEN]
    pasts = [graph.input(f"past_{kind}.{index}", TensorProto.FLOAT, dims) for kind in kinds]
    presents = [f"present_{kind}.{index}" for kind in kinds]
    bias = _gates(layer.bias)
    weights = [
        graph.array(f"layers.{index}.{name}", array[None])  # one direction
        for name, array in (
            ("W", _gates(layer.Wx)),
            ("R", _gates(layer.Wh)),
            ("B", np.concatenate([bias, np.zeros_like(bias)])),  # the second is the recurrence's
        )
    ]
    every = f"layers.{index}.hidden"
    graph.node(
        "LSTM",
        [x, *weights, None, *pasts],
        [every, *presents],
        name=f"layers.{index}",
        hidden_size=HIDDEN,
    )
    hidden = graph.op("Squeeze", Value(every, x.dtype), graph.ints(1))  # of its directions
    return hidden, [Value(name, x.dtype) for name in presents]


def _gates(weights: object) -> np.ndarray:
    """The rows of four gates from MLX's order, i f g o, to ONNX's, i o f g."""
    i, f, g, o = np.split(np.array(weights), 4)
    return np.concatenate([i, o, f, g])
