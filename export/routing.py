"""Which experts a token goes through, as operators of ONNX itself (see `mlx_model/experts.py`)."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from onnx import TensorProto

from ..mlx_model.config import Experts
from ..mlx_model.experts import LEAST_SUM
from .builder import GraphBuilder, Value

_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Routing:
    """The choice for T tokens."""

    chosen: Value  # int64 [T, k]
    weights: Value  # float32 [T, k]


class Router:
    """Emits the nodes of a layer's routing."""

    def __init__(self, graph: GraphBuilder):
        self._graph = graph

    def flat(self, logits: Value, spec: Experts) -> Value:
        """A router's logits [B, L, X] → float32 [T, X]."""
        logits = self._graph.op("Reshape", logits, self._graph.ints(-1, spec.count))
        if logits.dtype == TensorProto.FLOAT:
            return logits
        return self._graph.op("Cast", logits, to=TensorProto.FLOAT, dtype=TensorProto.FLOAT)

    def route(
        self, name: str, logits: Value, spec: Experts, correction: mx.array | None
    ) -> Routing:
        """From the router's logits, float32 [T, X]; `name` begins the nodes' names."""
        graph = self._graph
        if spec.score == "sigmoid":
            scores = graph.op("Sigmoid", logits)
        else:
            scores = graph.op("Softmax", logits, axis=-1)
        ranked = scores
        if correction is not None:
            array = np.array(correction.astype(mx.float32))
            ranked = graph.op("Add", scores, graph.constant(array))
        if spec.groups > 1:
            ranked = self._in_best_groups(name, ranked, spec)
        weights, chosen = self._best(name, ranked, spec.per_token)
        if ranked is not scores:
            weights = graph.op("GatherElements", scores, chosen, axis=-1)
        return Routing(chosen, self._weigh(weights, spec))

    def _weigh(self, weights: Value, spec: Experts) -> Value:
        graph = self._graph
        if spec.renormalise:
            total = graph.op("ReduceSum", weights, graph.ints(-1), keepdims=1)
            weights = graph.op("Div", weights, graph.op("Add", total, self._number(LEAST_SUM)))
        if spec.scale != 1.0:
            weights = graph.op("Mul", weights, self._number(spec.scale))
        return weights

    def _in_best_groups(self, name: str, ranked: Value, spec: Experts) -> Value:
        """What stands outside the best groups becomes the lowest number."""
        graph, truth = self._graph, TensorProto.BOOL
        grouped = graph.op("Reshape", ranked, graph.ints(0, spec.groups, -1))
        two, _ = self._best(f"{name}/two", grouped, 2)  # [T, groups, 2]
        sums = graph.op("ReduceSum", two, graph.ints(-1), keepdims=0)
        _, best = self._best(f"{name}/groups", sums, spec.chosen_groups)  # [T, chosen]
        best = graph.op("Unsqueeze", best, graph.ints(1))
        every = graph.constant(np.arange(spec.groups)[:, None])
        match = graph.op("Equal", every, best, dtype=truth)  # [T, groups, chosen]
        match = graph.op("Cast", match, to=TensorProto.FLOAT, dtype=TensorProto.FLOAT)
        inside = graph.op("ReduceMax", match, graph.ints(-1), keepdims=1)
        inside = graph.op("Cast", inside, to=truth, dtype=truth)  # [T, groups, 1]
        kept = graph.op("Where", inside, grouped, self._number(_LOWEST), dtype=TensorProto.FLOAT)
        return graph.op("Reshape", kept, graph.ints(0, -1))

    def _best(self, name: str, scores: Value, count: int) -> tuple[Value, Value]:
        """The largest along the last axis and their indices; of equals, the lower first."""
        graph, node = self._graph, f"{name}/TopK"
        values, indices = Value(f"{node}.out", scores.dtype), Value(f"{node}.at", TensorProto.INT64)
        names = [values.name, indices.name]
        graph.node("TopK", [scores, graph.ints(count)], names, name=node, axis=-1)
        return values, indices

    def _number(self, value: float) -> Value:
        return self._graph.constant(np.array(value, np.float32))
