"""The attention nodes of a decoder's graph, and the graph with what they read as outputs.

Two operators show their operands: com.microsoft's GroupQueryAttention and ONNX's Attention. Both
take queries and hand out the keys and values of the whole sequence, rotated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.errors import InputError
from ...runtime.folder import ModelFolder

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_PREFIX = "pippin.trace"  # of what is added to a graph
# Positions among the inputs of GroupQueryAttention and of Attention.
_KEY, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINKS, _AFTER_SINKS = 1, 6, 7, 8, 9, 10, 11, 12
_MASK, _AFTER_PASTS = 3, 6


@dataclass(frozen=True)
class Node:
    """One layer's attention: names of outputs, and what the node does with them."""

    query: str  # [B, L, H·D], with the keys and values behind them where `packed`; or [B, H, L, D]
    packed: bool
    mask: str | None  # keys that are seen, bool, or what is added to scores [B or 1, H or 1, L, S]
    rotation: tuple[str, str] | None  # cos and sin of the new tokens, [L or 1, L, dims/2]
    interleaved: bool  # the pairs that turn are neighbours
    scale: float | None  # None: 1/√D
    softcap: float | None
    window: int | None  # keys, the current one included
    causal: bool
    sinks: np.ndarray | None  # [H]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of all that must be looked at."""
        return tuple(name for name in (self.query, self.mask, *(self.rotation or ())) if name)


def show_nodes(folder: ModelFolder) -> tuple[bytes, tuple[Node, ...]]:
    """The graph of `folder` with its attention nodes' operands as outputs, and these nodes.

    Raises InputError when a layer's attention is made of other operators, or of their variants
    that are not known here.
    """
    import onnx

    model = onnx.load(folder.graph, load_external_data=False)
    editor = _Editor(folder, model)
    nodes = tuple(editor.nodes())
    known = {output.name for output in model.graph.output}
    for name in dict.fromkeys(name for node in nodes for name in node.outputs):
        if name not in known:  # onnxruntime finds out types by itself
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model.SerializeToString(), nodes


class _Editor:
    """Reads the nodes of one graph, and adds to it what is needed for showing them."""

    def __init__(self, folder: ModelFolder, model: "ModelProto") -> None:
        self._folder, self._graph = folder, model.graph
        self._arrays = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._rotations: dict[tuple[str, ...], tuple[str, str]] = {}

    def nodes(self) -> Iterator[Node]:
        outputs = {output.name for output in self._graph.output}
        layer = 0
        while (name := self._folder.names.present_key_names.replace("%d", str(layer))) in outputs:
            yield self._node(name, layer)
            layer += 1

    def _node(self, present: str, layer: int) -> Node:
        node = self._makers.get(present)
        operator = node.op_type if node else "nothing"
        if operator == "GroupQueryAttention":
            return self._grouped(node, layer)
        if operator == "Attention" and node.domain in ("", "ai.onnx"):
            return self._standard(node, layer)
        raise self._refusal(
            layer, f"its keys come from {operator}, not from GroupQueryAttention or Attention"
        )

    def _grouped(self, node: "NodeProto", layer: int) -> Node:
        inputs, attributes = _inputs(node), _attributes(node)
        if any(inputs[_AFTER_SINKS:]):
            raise self._refusal(
                layer, "it scales a quantized cache, or normalises heads, by itself"
            )
        if attributes.get("sliding_window_cache", 0):
            raise self._refusal(layer, "its cache holds the window alone")
        sinks = self._sinks(inputs[_SINKS], layer)
        if sinks is None and attributes.get("smooth_softmax", 0) == 1:
            sinks = np.zeros(attributes["num_heads"], np.float32)
        window, softcap = attributes.get("local_window_size", -1), attributes.get("softcap", 0.0)
        return Node(
            query=inputs[0],
            packed=not inputs[_KEY],
            mask=inputs[_BIAS] or None,
            rotation=self._rotation(inputs) if attributes.get("do_rotary", 0) else None,
            interleaved=bool(attributes.get("rotary_interleaved", 0)),
            scale=attributes.get("scale") or None,
            softcap=softcap or None,
            window=window if window > 0 else None,
            causal=bool(attributes.get("causal", 1)),
            sinks=sinks,
        )

    def _standard(self, node: "NodeProto", layer: int) -> Node:
        inputs, attributes = _inputs(node), _attributes(node)
        if any(inputs[_AFTER_PASTS:]):
            raise self._refusal(layer, "it is told the lengths of padded keys")
        return Node(
            query=inputs[0],
            packed=False,
            mask=inputs[_MASK] or None,
            rotation=None,
            interleaved=False,
            scale=attributes.get("scale"),
            softcap=attributes.get("softcap", 0.0) or None,
            window=None,
            causal=bool(attributes.get("is_causal", 0)),
            sinks=None,
        )

    def _sinks(self, name: str, layer: int) -> np.ndarray | None:
        from onnx.numpy_helper import to_array

        if not name:
            return None
        if name not in self._arrays:
            raise self._refusal(layer, "its sinks are computed")
        array = to_array(self._arrays[name], str(self._folder.graph.parent))
        return array.astype(np.float32).reshape(-1)

    def _refusal(self, layer: int, why: str) -> InputError:
        return InputError(
            f"{self._folder.graph} does not show the attention of layer {layer}: {why}; export the "
            "model with `pippin export`"
        )

    def _rotation(self, inputs: list[str]) -> tuple[str, str]:
        """Add nodes for the rows of the tables that the new tokens turn by."""
        key = (inputs[_COS], inputs[_SIN], inputs[_POSITIONS])
        if key not in self._rotations:
            number = len(self._rotations)
            positions = inputs[_POSITIONS] or self._positions(inputs[0], inputs[_TOTAL])
            names = f"{_PREFIX}.cos.{number}", f"{_PREFIX}.sin.{number}"
            for table, name in zip(key, names, strict=False):
                self._add("Gather", [table, positions], name)
            self._rotations[key] = names
        return self._rotations[key]

    def _positions(self, query: str, total: str) -> str:
        """[L]: the last L of the `total` positions, L as of `query` [B, L, ·]."""
        name = f"{_PREFIX}.positions"
        if name in self._makers:
            return name
        import onnx

        one, none = self._constant("one", np.int64(1)), self._constant("none", np.zeros(0, int))
        shape = self._add("Shape", [query], f"{name}.shape")
        length = self._add("Gather", [shape, one], f"{name}.length")
        end = self._add("Cast", [total], f"{name}.total", to=onnx.TensorProto.INT64)
        end = self._add("Reshape", [end, none], f"{name}.end")
        start = self._add("Sub", [end, length], f"{name}.start")
        return self._add("Range", [start, end, one], name)

    def _constant(self, name: str, value: Any) -> str:
        from onnx.numpy_helper import from_array

        self._graph.initializer.append(from_array(np.asarray(value), f"{_PREFIX}.{name}"))
        return f"{_PREFIX}.{name}"

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: int) -> str:
        from onnx.helper import make_node

        node = make_node(operator, inputs, [output], output, **attributes)
        self._graph.node.append(node)
        self._makers[output] = node
        return output


def _inputs(node: "NodeProto") -> list[str]:
    """With "" for those that are left out at the end."""
    return [*node.input, *[""] * (_AFTER_SINKS - len(node.input))]


def _attributes(node: "NodeProto") -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
