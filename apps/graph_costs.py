"""What a graph must do for a token, whatever computes it: bytes to read, numbers to multiply.

A program cannot decode faster than it reads all weights and the whole cache once a token, nor
prefill faster than it multiplies: the rates of `bench_machine` make limits of these counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_INT8_LEVEL = 4  # accuracy_level of MatMulNBits that multiplies int8 numbers
# operators with weights, and whether they multiply int8 numbers; None: by their accuracy level
_PRODUCTS = {
    "MatMul": False,
    "Gemm": False,
    "MatMulNBits": None,
    "MatMulInteger": True,
    "MatMulIntegerToFloat": True,
    "DynamicQuantizeMatMul": True,
}
_REWRITING = {"DequantizeLinear", "Transpose", "Cast"}  # between a product and its weights
_EXPERTS = {"MoE", "QMoE"}  # which of them a token reads is known only when it does
_ATTENTION = {"GroupQueryAttention": ("num_heads", 3), "Attention": ("q_num_heads", 4)}


@dataclass(frozen=True)
class LayerCost:
    """One layer's attention, for each key that a token sees."""

    bytes: int  # of keys and values, read once
    multiplications: int  # of queries with keys, and of weights with values
    window: int | None  # W; None when all keys are seen

    def keys(self, length: float) -> float:
        """Keys seen by the token after `length` others."""
        return length if self.window is None else min(length, self.window)


@dataclass(frozen=True)
class GraphCosts:
    """The costs of one token."""

    weight_bytes: int  # of all products, each read once
    fp32: int  # multiplications with weights in a prompt, the vocabulary's not counted
    int8: int
    layers: tuple[LayerCost, ...]

    def step_bytes(self, length: float, sequences: int = 1) -> float:
        """Bytes read for one token of each of `sequences`, each after `length` others."""
        cache = sum(layer.bytes * layer.keys(length) for layer in self.layers)
        return self.weight_bytes + sequences * cache

    def prefill_seconds(self, length: int, fp32_rate: float, int8_rate: float) -> float:
        """Seconds for each of `length` tokens at these rates of operations, of which a
        multiplication and its addition are two; attention multiplies float32.
        """
        keys = (layer.multiplications * layer.keys((length + 1) / 2) for layer in self.layers)
        return 2 * ((self.fp32 + sum(keys)) / fp32_rate + self.int8 / int8_rate)


def graph_costs(path: Path) -> GraphCosts | None:
    """The costs of the graph in `path`, whose data files are not opened.

    None where a token's path through the weights is not known beforehand: experts, or products in
    branches. Attention may have branches, which are taken to read and multiply the same.
    """
    import onnx

    from ..export.needs import branch_nodes

    graph = onnx.load(path, load_external_data=False).graph
    inner = [part for node in graph.node for part in branch_nodes(node)]
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    if any(node.op_type in _EXPERTS for node in (*graph.node, *inner)) or any(
        _weights(node, tensors, makers) for node in inner
    ):
        return None
    heads = _heads(tensors, makers) if "num_logits" in tensors else set()
    weight_bytes, counts = 0, {False: 0, True: 0}
    for node in graph.node:
        weights = _weights(node, tensors, makers)
        if not weights:
            continue  # no product, or one of attention
        weight_bytes += sum(map(_bytes, weights))
        if node.output[0] not in heads:
            counts[_is_int8(node)] += _multiplications(node, weights)
    layers = tuple(_layers(graph.input, (*graph.node, *inner)))
    return GraphCosts(weight_bytes, counts[False], counts[True], layers)


def _weights(
    node: "onnx.NodeProto",
    tensors: "dict[str, onnx.TensorProto]",
    makers: "dict[str, onnx.NodeProto]",
) -> "list[onnx.TensorProto]":
    """The tensors of the file that the product `node` reads; none of another node."""
    names = node.input if node.op_type in _PRODUCTS else ()
    return [tensor for name in names for tensor in _stored(name, tensors, makers)]


def _stored(
    name: str, tensors: "dict[str, onnx.TensorProto]", makers: "dict[str, onnx.NodeProto]"
) -> "Iterator[onnx.TensorProto]":
    """The tensors of the file that the value `name` is, or is made of."""
    if name in tensors:
        yield tensors[name]
    elif name in makers and makers[name].op_type in _REWRITING:
        for part in makers[name].input:
            yield from _stored(part, tensors, makers)


def _bytes(tensor: "onnx.TensorProto") -> int:
    for entry in tensor.external_data:
        if entry.key == "length":
            return int(entry.value)
    return len(tensor.SerializeToString())


def _heads(tensors: "dict[str, onnx.TensorProto]", makers: "dict[str, onnx.NodeProto]") -> set[str]:
    """Outputs of the products that the logits are made of, which only a last token needs."""
    found, values = set(), ["logits"]
    while values:
        node = makers.get(values.pop())
        if node is None:
            continue
        if _weights(node, tensors, makers):
            found.add(node.output[0])
        else:
            values.extend(node.input)
    return found


def _multiplications(node: "onnx.NodeProto", weights: "list[onnx.TensorProto]") -> int:
    """Of one row with the weights of the product `node`."""
    if node.op_type == "MatMulNBits":
        given = {a.name: a.i for a in node.attribute}
        return given["K"] * given["N"]
    return prod(max(weights, key=_bytes).dims)


def _is_int8(node: "onnx.NodeProto") -> bool:
    known = _PRODUCTS[node.op_type]
    if known is not None:
        return known
    return any(a.name == "accuracy_level" and a.i == _INT8_LEVEL for a in node.attribute)


def _layers(
    inputs: "Iterable[onnx.ValueInfoProto]", nodes: "Iterable[onnx.NodeProto]"
) -> Iterator[LayerCost]:
    """Of the attention nodes that read a cache of the graph's inputs, one for each cache."""
    import onnx

    kinds = {value.name: value.type.tensor_type for value in inputs}
    seen: set[str] = set()
    for node in nodes:
        heads_name, at = _ATTENTION.get(node.op_type, ("", len(node.input)))
        names = [name for name in node.input[at : at + 2] if name in kinds]
        if not names or seen.intersection(names):
            continue
        seen.update(names)
        given = {a.name: a.i for a in node.attribute}
        _, heads, _, size = (dim.dim_value for dim in kinds[names[0]].shape.dim)
        item = onnx.helper.tensor_dtype_to_np_dtype(kinds[names[0]].elem_type).itemsize
        window = given.get("local_window_size", -1)
        yield LayerCost(
            bytes=len(names) * heads * size * item,
            multiplications=2 * (given.get(heads_name) or heads) * size,
            window=window if window > 0 else None,
        )
