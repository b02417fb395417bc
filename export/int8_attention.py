"""Attention on an int8 cache: short calls compute on the codes, longer ones in floats.

GroupQueryAttention reads int8 keys and values twice as fast as float32 ones where a call has few
rows, and takes twice as long where it has many. So each node becomes an If on the call's length.
What is appended is the same either way. Of short calls, each row is the same to the bit, whether it
is a step, one of several rows or one of a batch.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..runtime.graph_file import SHORT_CALL

SHORT = 16  # rows up to which a call is computed on the codes
_PASTS, _KEY_SCALE = slice(3, 5), 12  # inputs of GroupQueryAttention; V's scale follows K's
_CODES = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
_IS_SHORT, _ONE, _ZERO = "kv.is_short", "kv.one", "kv.zero"
_TOTAL, _BEGIN, _END, _AXIS = "kv.total", "kv.begin", "kv.end", "kv.axis"  # of tokens, for Slice


def attend_to_codes(model: ModelProto, scales: Mapping[str, np.ndarray]) -> None:
    """Turn the float caches of `model` into int8 ones, in place.

    `scales`: float32 [K, D] by the name of the present. A code is round(x / scale), within
    −128…127. In a call of more than SHORT tokens these see one another as they were before that.
    """
    graph = model.graph
    dtype = next(arg.type.tensor_type.elem_type for arg in graph.output if arg.name in scales)
    for arg in (*graph.input, *graph.output):
        if arg.name in scales or arg.name.startswith("past_key_values."):
            arg.type.tensor_type.elem_type = TensorProto.INT8
    constants = {f"{name}.scale": array[None, :, None] for name, array in scales.items()}
    constants |= {SHORT_CALL: np.array([SHORT]), _ONE: np.float32(1), _ZERO: np.int8(0)}
    constants |= {_BEGIN: np.array([0]), _END: np.array([2**62]), _AXIS: np.array([2])}
    for name, array in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    turned = (
        _either(node, dtype) if node.op_type == "GroupQueryAttention" else node
        for node in graph.node
    )
    nodes = list(chain(_length_nodes(), turned))
    del graph.node[:]
    graph.node.extend(nodes)


def _length_nodes() -> Iterator[NodeProto]:
    length, fits = "kv.length", "kv.fits"
    yield helper.make_node("Shape", ["input_ids"], [length], length, start=1, end=2)
    yield helper.make_node("LessOrEqual", [length, SHORT_CALL], [fits], fits)
    yield helper.make_node("Squeeze", [fits], [_IS_SHORT], _IS_SHORT)
    yield helper.make_node("Shape", ["attention_mask"], [_TOTAL], _TOTAL, start=1, end=2)


def _either(node: NodeProto, dtype: int) -> NodeProto:
    branches = {
        "then_branch": _branch(f"{node.name}.codes", _on_codes, node, dtype),
        "else_branch": _branch(f"{node.name}.floats", _in_floats, node, dtype),
    }
    return helper.make_node("If", [_IS_SHORT], list(node.output), node.name, **branches)


def _branch(
    name: str,
    emit: Callable[[NodeProto, list[str], int], Iterator[NodeProto]],
    node: NodeProto,
    dtype: int,
) -> GraphProto:
    outputs = [f"{name}.{part}" for part in ("out", "key", "value")]
    kinds = (dtype, TensorProto.INT8, TensorProto.INT8)
    infos = [helper.make_tensor_value_info(o, k, None) for o, k in zip(outputs, kinds, strict=True)]
    return helper.make_graph(list(emit(node, outputs, dtype)), name, [], infos)


def _on_codes(node: NodeProto, outputs: list[str], dtype: int) -> Iterator[NodeProto]:
    """The node itself, with scales."""
    inputs = [*node.input, *[""] * (_KEY_SCALE - len(node.input)), *_scales(node)]
    yield _attention(node, inputs, outputs, _CODES)


def _in_floats(node: NodeProto, outputs: list[str], dtype: int) -> Iterator[NodeProto]:
    """The node on the sequence so far in floats; what it appends becomes codes.

    A cache may have room for many more tokens: only those of the sequence are computed with.
    """
    floats = [f"{name}.past" for name in outputs[1:]]
    for codes, scale, past in zip(node.input[_PASTS], _scales(node), floats, strict=True):
        yield helper.make_node("Slice", [codes, _BEGIN, _TOTAL, _AXIS], [f"{past}.used"])
        yield helper.make_node("Cast", [f"{past}.used"], [f"{past}.codes"], to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [f"{past}.codes", scale], [f"{past}.float32"])
        yield helper.make_node("Cast", [f"{past}.float32"], [past], to=dtype)
    presents = [f"{name}.present" for name in outputs[1:]]
    inputs = [*node.input[: _PASTS.start], *floats, *node.input[_PASTS.stop :]]
    yield _attention(node, inputs, [outputs[0], *presents], {})
    for past, present, scale, codes in zip(
        node.input[_PASTS], presents, _scales(node), outputs[1:], strict=True
    ):
        yield helper.make_node("Cast", [present], [f"{present}.float32"], to=TensorProto.FLOAT)
        yield helper.make_node("Div", [f"{present}.float32", scale], [f"{present}.steps"])
        yield helper.make_node(
            "QuantizeLinear", [f"{present}.steps", _ONE, _ZERO], [f"{codes}.used"]
        )
        yield helper.make_node("Slice", [past, _TOTAL, _END, _AXIS], [f"{codes}.room"])
        yield helper.make_node("Concat", [f"{codes}.used", f"{codes}.room"], [codes], axis=2)


def _attention(
    node: NodeProto, inputs: list[str], outputs: list[str], more: Mapping[str, str | int]
) -> NodeProto:
    """The same operator with other inputs and outputs, and further attributes."""
    new = helper.make_node(
        node.op_type, inputs, outputs, f"{outputs[0]}.attention", domain=node.domain, **more
    )
    new.attribute.extend(node.attribute)
    return new


def _scales(node: NodeProto) -> list[str]:
    return [f"{present}.scale" for present in node.output[1:3]]
