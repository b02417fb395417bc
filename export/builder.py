"""A small graph builder: operations take values and return values, names look after themselves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from .external_data import ExternalData, tensor_bytes

PRODUCER = "pippin"  # by this name an export is known for ours
CONTRIB = "com.microsoft"  # the domain of onnxruntime's own operators
_INLINE = 1024  # bytes up to which a tensor lives in the graph itself

Dim = int | str  # a size, or the name of a dynamic dimension
Chunks = Callable[[], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Value:
    """One edge of the graph."""

    name: str
    dtype: int  # TensorProto.FLOAT, …


class GraphBuilder:
    """Collects nodes, inputs, outputs and initializers, in the order of the calls."""

    def __init__(self, data: ExternalData):
        self._data = data
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._counts: dict[str, int] = {}
        self._variant: str | None = None
        self._only: dict[int, str] = {}  # by the id of a node: the one variant that has it

    def input(self, name: str, dtype: int, dims: Sequence[Dim]) -> Value:
        """An input that the caller must feed."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return Value(name, dtype)

    def overridable(self, name: str, default: np.ndarray) -> Value:
        """An input with a default: listed among the inputs and among the initializers."""
        tensor = numpy_helper.from_array(default, name)
        self._initializers.append(tensor)
        return self.input(name, tensor.data_type, default.shape)

    def output(self, name: str, value: Value, dims: Sequence[Dim]) -> None:
        """Make `value` the graph's output `name`, by which nodes to come may read it."""
        for node in reversed(self._nodes):
            node.output[:] = [name if output == value.name else output for output in node.output]
        self._outputs.append(helper.make_tensor_value_info(name, value.dtype, dims))

    def weight(self, name: str, dtype: int, shape: tuple[int, ...], chunks: Chunks) -> Value:
        """An initializer; a large one goes to the data file and is never held whole."""
        if tensor_bytes(dtype, shape) > _INLINE:
            self._initializers.append(self._data.add(name, dtype, shape, chunks()))
        else:
            raw = b"".join(np.ascontiguousarray(chunk).tobytes() for chunk in chunks())
            self._initializers.append(helper.make_tensor(name, dtype, shape, raw, raw=True))
        return Value(name, dtype)

    def array(self, name: str, array: np.ndarray) -> Value:
        """An initializer from an array that is at hand."""
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        return self.weight(name, dtype, array.shape, lambda: [array])

    def constant(self, array: np.ndarray) -> Value:
        """A small unnamed initializer; equal ones are one."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.array(name, array)
        return self._constants[key]

    def ints(self, *numbers: int) -> Value:
        """The constant int64 vector of `numbers`: axes, a shape, indices."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def op(
        self,
        kind: str,
        *inputs: Value | None,
        domain: str = "",
        dtype: int | None = None,
        name: str = "",
        output: str = "",
        **attributes: Any,
    ) -> Value:
        """Append a node with one output; its dtype is the first input's where none is given."""
        node = name or self._unique(kind)
        output = output or f"{node}.out"
        self.node(kind, inputs, [output], domain=domain, name=node, **attributes)
        if dtype is None:
            dtype = TensorProto.INT64 if kind == "Shape" else inputs[0].dtype
        return Value(output, dtype)

    def node(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[str],
        *,
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> None:
        """Append a node whose outputs are named by the caller ("" leaves one out)."""
        names = [value.name if value else "" for value in inputs]
        while names and not names[-1]:
            names.pop()
        made = helper.make_node(
            kind, names, outputs, name=name or self._unique(kind), domain=domain, **attributes
        )
        self._nodes.append(made)
        if self._variant is not None:
            self._only[id(made)] = self._variant

    @contextmanager
    def variant(self, name: str) -> Iterator[None]:
        """Nodes appended inside are in this variant of the graph only (see `model`)."""
        self._variant = name
        yield
        self._variant = None

    def renamed(self, value: Value, name: str) -> Value:
        """The last node's output under another name, which variants of the graph share."""
        outputs = self._nodes[-1].output
        outputs[list(outputs).index(value.name)] = name
        return Value(name, value.dtype)

    def branch(
        self, name: str, emit: Callable[[], Sequence[Value]], inputs: Sequence[ValueInfoProto] = ()
    ) -> GraphProto:
        """The nodes that `emit` appends, as a graph for If or, with `inputs`, for Loop.

        `emit` returns the graph's outputs. Inside, all values from before may be used; outside,
        nothing of it but what If and Loop give.
        """
        outer, self._nodes = self._nodes, []
        try:
            outputs = [
                helper.make_tensor_value_info(value.name, value.dtype, None) for value in emit()
            ]
            return helper.make_graph(self._nodes, name, inputs, outputs)
        finally:
            self._nodes = outer

    def model(
        self,
        opset: int,
        ir_version: int,
        metadata: dict[str, str],
        *,
        name: str = "decoder",
        variant: str | None = None,
    ) -> ModelProto:
        """The finished model; nothing in it depends on time, place or hash order.

        `variant`: of the nodes that were made for one variant alone, those of this one.
        """
        nodes = [node for node in self._nodes if self._only.get(id(node)) in (None, variant)]
        read = {value.name for value in self._inputs} | values_read(nodes)
        initializers = [tensor for tensor in self._initializers if tensor.name in read]
        graph = helper.make_graph(nodes, name, self._inputs, self._outputs, initializers)
        opsets = [helper.make_opsetid("", opset)]
        if any(node.domain == CONTRIB for node in nodes):
            opsets.append(helper.make_opsetid(CONTRIB, 1))
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=ir_version, producer_name=PRODUCER
        )
        helper.set_model_props(model, metadata)
        return model

    def _unique(self, kind: str) -> str:
        """The next free node name for an operator."""
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}_{number}"


def values_read(nodes: Iterable[NodeProto]) -> set[str]:
    """The names of all values that `nodes` read, those in their branches included."""
    read: set[str] = set()
    for node in nodes:
        read.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                read |= values_read(attribute.g.node) | {value.name for value in attribute.g.output}
    return read
