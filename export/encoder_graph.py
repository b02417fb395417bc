"""From an encoder to a `.onnx` file: the forward runs once and leaves a graph."""

from pathlib import Path

from onnx import TensorProto

from ..mlx_model.encoder import Encoder
from .base_ops import Inputs
from .builder import GraphBuilder, Value
from .external_data import ExternalData
from .graph import VERSIONS, Progress, Release
from .settings import Settings
from .stack_ops import EncoderLayer, OnnxStackOps

TOKENS = ["batch_size", "sequence_length"]


def write_encoder(
    encoder: Encoder, path: Path, settings: Settings, progress: Progress | None = None
) -> list[Path]:
    """Write the graph to `path`; returns the data files beside it, in order.

    Inputs, int64 [B, L]: input_ids, attention_mask and, where the model has them, token_type_ids.
    Output: last_hidden_state [B, L, E], float32. The encoder is used up, as by `write_graph`.
    Raises InputError for weights that float16 cannot hold and OSError when the disk is full.
    """
    with ExternalData(path) as data:
        graph = GraphBuilder(data)
        _build(graph, encoder, settings, progress)
    save(graph, path, settings, "encoder")
    return data.files


def save(graph: GraphBuilder, path: Path, settings: Settings, name: str) -> None:
    """Write the finished graph, with what anyone who meets it alone should know of it."""
    opset, ir_version = VERSIONS["gqa"]  # that dialect's operators
    metadata = {"pippin.weights": settings.weights}
    if settings.context:
        metadata["pippin.context"] = str(settings.context)
    model = graph.model(opset, ir_version, metadata, name=name)
    path.write_bytes(model.SerializeToString(deterministic=True))


def as_float32(graph: GraphBuilder, value: Value) -> Value:
    """What other programs read, whatever the graph computes in."""
    if value.dtype == TensorProto.FLOAT:
        return value
    return graph.op("Cast", value, dtype=TensorProto.FLOAT, to=TensorProto.FLOAT)


def _build(
    graph: GraphBuilder, encoder: Encoder, settings: Settings, progress: Progress | None
) -> None:
    names = ["input_ids", "attention_mask"]
    if encoder.config.token_types:
        names.append("token_type_ids")
    ids, mask, *types = (graph.input(name, TensorProto.INT64, TOKENS) for name in names)
    ops = OnnxStackOps(
        graph, encoder, settings, Inputs(ids, mask, None, None), Release(encoder, progress)
    )
    stack = encoder.config.stack
    caches = [EncoderLayer(index) for index in range(stack.layers)]
    hidden = encoder(ops, ids, types[0] if types else None, caches)
    hidden = as_float32(graph, ops.value(hidden))
    graph.output("last_hidden_state", hidden, [*TOKENS, stack.hidden_size])
