"""The optional end of a graph: what a caller samples from, so that logits stay on their device."""

import numpy as np
from onnx import TensorProto

from .builder import GraphBuilder, Value

TOP = 64  # candidates, or the whole vocabulary where that is smaller


def add_sampling_head(graph: GraphBuilder, logits: Value, vocab_size: int) -> None:
    """Outputs of the last row of logits [B, R, V]: `token` [B], the first of the largest, and
    `top_ids` and `top_logits` [B, TOP], falling.
    """
    ints, end = graph.ints, np.iinfo(np.int64).max
    row = graph.op("Squeeze", graph.op("Slice", logits, ints(-1), ints(end), ints(1)), ints(1))
    token = graph.op("ArgMax", row, dtype=TensorProto.INT64, axis=-1, keepdims=0)
    count = min(TOP, vocab_size)
    graph.node("TopK", [row, ints(count)], ["top_logits", "top_ids"], axis=-1, largest=1, sorted=1)
    graph.output("token", token, ["batch_size"])
    graph.output("top_ids", Value("top_ids", TensorProto.INT64), ["batch_size", count])
    graph.output("top_logits", Value("top_logits", logits.dtype), ["batch_size", count])
