"""The onnxruntime that the operators of a graph need, whoever made it."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

# Inputs of GroupQueryAttention by release: up to the rotation's tables, position_ids and
# attention_bias, head_sink. An operator with more inputs than its schema does not load.
_GQA_INPUTS = (((1, 22), 9), ((1, 23), 11))


@dataclass(frozen=True)
class Need:
    """A release of onnxruntime, and what in the graph is not right in older ones."""

    release: tuple[int, int]
    what: str


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of `graph` and, after each that has some, those of its branches."""
    for node in graph.node:
        yield node
        yield from branch_nodes(node)


def branch_nodes(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes of the branches of `node`, and of theirs."""
    for attribute in node.attribute:
        for branch in (attribute.g, *attribute.graphs):
            yield from all_nodes(branch)


def ort_needs(model: ModelProto) -> list[Need]:
    """All that is known to need a release newer than 1.20, each once."""
    needs = [Need((1, 23), f"opset {n}") for n in [_opset(model)] if n >= 23]
    packed = {t.name for t in model.graph.initializer if t.data_type == TensorProto.UINT8}
    for node in all_nodes(model.graph):
        needs.extend(_node_needs(node, packed))
    return sorted(set(needs), key=lambda need: (need.release, need.what))


def _node_needs(node: NodeProto, packed: set[str]) -> Iterator[Need]:
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type == "MatMulNBits" and attributes.get("bits") == 8:
        yield Need((1, 22), "MatMulNBits of 8 bits")
    elif node.op_type == "GatherBlockQuantized" and node.input[0] in packed:
        yield Need((1, 22), "GatherBlockQuantized on uint8")
    elif node.op_type == "GroupQueryAttention":
        for release, known in reversed(_GQA_INPUTS):
            if len(node.input) > known:
                yield Need(release, f"GroupQueryAttention with {len(node.input)} inputs")
                break
        if "kv_cache_bit_width" in attributes:
            yield Need((1, 27), "an int8 KV cache in GroupQueryAttention")
        if attributes.get("local_window_size", -1) > 0:
            yield Need((1, 24), "a sliding window in GroupQueryAttention")


def _opset(model: ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain == ""), 0)
