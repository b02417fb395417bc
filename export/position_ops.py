"""Positions in the graph, counted from its inputs, and what is made of them once for all layers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from ..mlx_model.positions import Alibi, RopeConfig, inverse_frequencies, rope_tables
from .builder import GraphBuilder, Value
from .settings import Settings


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs apart from the caches."""

    ids: Value  # [B, L]
    attention_mask: Value  # [B, S]
    num_logits: Value  # [1]: how many of the last rows get logits; 0 means all
    # [1]: rotate as for a sequence of at least so many tokens; only where that makes a difference
    rotation_length: Value | None


class PositionOps:
    """What `base_ops.OnnxOps` has of positions."""

    def __init__(self, graph: GraphBuilder, settings: Settings, inputs: Inputs):
        self.graph = graph
        self.settings = settings
        self.ids, self.attention_mask = inputs.ids, inputs.attention_mask
        self._rotation_length = inputs.rotation_length
        self._rotations: dict[RopeConfig, tuple[Value, Value]] = {}
        self._shared: dict[object, Value] = {}  # what several layers use, see `once`

    def once(self, key: object, emit: Callable[[], Value]) -> Value:
        """What `emit` makes, which is asked only the first time that `key` is wanted."""
        if key not in self._shared:
            self._shared[key] = emit()
        return self._shared[key]

    def all_positions(self) -> Value:
        """Each token's position [B, S]: the tokens before it, padding left out."""
        return self.once("all positions", self._count)

    def _count(self) -> Value:
        graph = self.graph
        zero, one = (graph.constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        seen = graph.op("CumSum", self.attention_mask, one)
        return graph.op("Max", graph.op("Sub", seen, graph.ints(1)), zero)

    def positions(self) -> Value:
        """Each new token's position [B, L]."""
        return self.once("positions", self._last_positions)

    def _last_positions(self) -> Value:
        graph = self.graph
        start = graph.op("Neg", self.length())
        end = np.iinfo(np.int64).max
        return graph.op("Slice", self.all_positions(), start, graph.ints(end), graph.ints(1))

    def length(self) -> Value:
        """[1]: L."""
        return self.once("length", lambda: self.graph.op("Shape", self.ids, start=1, end=2))

    def total(self) -> Value:
        """[1]: S."""
        return self.once(
            "total", lambda: self.graph.op("Shape", self.attention_mask, start=1, end=2)
        )

    def rotation(self, rope: RopeConfig) -> tuple[Value, Value]:
        """The cos and sin tables [context, dims/2], once for each kind of rotation.

        Where the rotation depends on the sequence's length, the tables for short sequences stand
        before those for long ones, and `rotated_positions` says where to look; where each length
        has a rotation of its own, the graph computes them [S, dims/2].
        """
        if rope not in self._rotations:
            grows = self.switches(rope) and rope.scaling == "dynamic"
            self._rotations[rope] = self._grown(rope) if grows else self._stored(rope)
        return self._rotations[rope]

    def _stored(self, rope: RopeConfig) -> tuple[Value, Value]:
        number = f"_{len(self._rotations)}" if self._rotations else ""
        kind = np.float16 if self.settings.dtype == TensorProto.FLOAT16 else np.float32
        context = self.settings.context
        parts = [rope_tables(rope.at(min(context, rope.switch or context)), context)]
        if self.switches(rope):
            short = [table[: rope.switch] for table in parts[0]]
            parts = [short, rope_tables(rope.at(context), context)]
        cos, sin = (
            self.graph.array(f"{name}_cache{number}", np.concatenate(tables).astype(kind))
            for name, tables in zip(("cos", "sin"), zip(*parts, strict=True), strict=True)
        )
        return cos, sin

    def switches(self, rope: RopeConfig) -> bool:
        """Whether sequences within the context rotate in more than one way."""
        return rope.switch is not None and self._rotation_length is not None

    def shifted(self, rope: RopeConfig) -> bool:
        """Whether `rotated_positions` are others than `positions`."""
        return self.switches(rope) and rope.scaling != "dynamic"

    def rotated_positions(self, rope: RopeConfig) -> Value:
        """The rows of `rotation`'s tables that the new tokens turn by, int64 [B, L]."""
        if not self.shifted(rope):
            return self.positions()
        return self.once(("rows", rope.switch), lambda: self._rows_by_length(rope.switch))

    def _grown(self, rope: RopeConfig) -> tuple[Value, Value]:
        """Dynamic NTK's tables [S, dims/2]: see `RopeConfig.at` and `stretch`."""
        graph, real = self.graph, TensorProto.FLOAT
        length = graph.op("Max", self.total(), self._rotation_length)
        tokens = graph.op("Cast", length, dtype=real, to=real)
        stretched = graph.op("Mul", tokens, self.number(rope.factor / rope.switch, real))
        stretched = graph.op("Sub", stretched, self.number(rope.factor - 1.0, real))
        stretched = graph.op("Max", stretched, self.number(1.0, real))  # [1]
        # (base · s^(d/(d−2)))^(−2i/d) is base^(−2i/d) · s^(−2i/(d−2)).
        powers = -np.arange(0, rope.dims, 2, dtype=np.float32) / (rope.dims - 2)
        slower = graph.op("Pow", stretched, graph.constant(powers))  # [dims/2]
        frequencies = graph.op("Mul", slower, graph.constant(inverse_frequencies(rope.at(1))))
        zero, one = (graph.constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        places = graph.op("Range", zero, graph.op("Squeeze", length, graph.ints(0)), one)
        places = graph.op("Cast", places, dtype=real, to=real)
        angles = graph.op("Mul", graph.op("Unsqueeze", places, graph.ints(1)), frequencies)
        cos, sin = graph.op("Cos", angles), graph.op("Sin", angles)
        if self.settings.dtype == real:
            return cos, sin
        to = self.settings.dtype
        return graph.op("Cast", cos, dtype=to, to=to), graph.op("Cast", sin, dtype=to, to=to)

    def _rows_by_length(self, switch: int) -> Value:
        graph = self.graph
        length = graph.op("Max", self.total(), self._rotation_length)
        long = graph.op("Greater", length, graph.ints(switch), dtype=TensorProto.BOOL)
        shift = graph.op("Where", long, graph.ints(switch), graph.ints(0), dtype=TensorProto.INT64)
        return graph.op("Add", self.positions(), shift)

    def alibi(self, alibi: Alibi) -> Value:
        """What ALiBi adds to the scores [B, H, L, S]."""
        return self.once(alibi, lambda: self._emit_alibi(alibi))

    def _emit_alibi(self, alibi: Alibi) -> Value:
        """From distances, not from the keys' positions: float16 is fine near the row's own key."""
        graph, dtype = self.graph, self.settings.dtype
        keys = graph.op("Unsqueeze", self.all_positions(), graph.ints(1, 2))  # [B, 1, 1, S]
        rows = graph.op("Unsqueeze", self.positions(), graph.ints(1, 3))  # [B, 1, L, 1]
        distance = graph.op("Cast", graph.op("Sub", keys, rows), dtype=dtype, to=dtype)
        slopes = np.array(alibi.slopes, helper.tensor_dtype_to_np_dtype(dtype))
        return graph.op("Mul", graph.array("alibi_slopes", slopes[None, :, None, None]), distance)
