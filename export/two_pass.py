"""A quantized product in two passes, since one of int8 activations costs too much quality.

At accuracy level 4, MatMulNBits rounds each block of x to int8 at a scale of max|x|/127. Here x is
split into what that grid holds exactly and the rest, at most half a step, which the second pass
rounds 254 times finer. Both are rows of one product, so the weights are read once.
"""

import numpy as np

from .builder import GraphBuilder, Value

_TINY = 1e-30  # keeps a block of zeros from dividing 0 by 0


class TwoPass:
    """Emits what comes before and after such a product."""

    def __init__(self, graph: GraphBuilder):
        self._graph = graph

    def split(self, x: Value, block: int) -> Value:
        """x [B, L, K] → its coarse part, then the rest [B, 2·L, K]; K a multiple of the block."""
        return self._graph.op("Concat", *self.parts(x, block), axis=1)

    def parts(self, x: Value, block: int) -> tuple[Value, Value]:
        """x [B, L, K] → its coarse part and the rest, of the same shape."""
        graph = self._graph
        blocks = graph.op("Reshape", x, graph.ints(0, 0, -1, block))
        top = graph.op("ReduceMax", graph.op("Abs", blocks), graph.ints(-1), keepdims=1)
        step = graph.op("Mul", top, graph.constant(np.array(1 / 127, np.float32)))
        step = graph.op("Max", step, graph.constant(np.array(_TINY, np.float32)))
        codes = graph.op("Round", graph.op("Div", blocks, step))
        coarse = graph.op("Reshape", graph.op("Mul", codes, step), graph.ints(0, 0, -1))
        return coarse, graph.op("Sub", x, coarse)

    def join(self, name: str, y: Value) -> Value:
        """The product's rows [B, 2·L, N] → the sum of both parts [B, L, N]."""
        halves = [Value(f"{name}/{part}", y.dtype) for part in ("coarse", "rest")]
        self._graph.node("Split", [y], [half.name for half in halves], axis=1, num_outputs=2)
        return self._graph.op("Add", *halves)
