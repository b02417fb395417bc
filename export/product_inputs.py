"""What quantized products multiply: x, rounded or not, and the columns that they need besides."""

from collections.abc import Callable

import numpy as np

from .builder import GraphBuilder, Value
from .nbits import NBits
from .outliers import sources
from .two_pass import TwoPass


class Inputs:
    """Emits what products read; once for all that read the same."""

    def __init__(self, graph: GraphBuilder):
        self._graph = graph
        self._two_pass = TwoPass(graph)
        self._made: dict[tuple, Value] = {}

    def prepare(self, x: Value, matrix: NBits, *, twice: bool, in_table: bool) -> Value:
        """x [B, L, K'] → [B, L, K], or `twice`, in two passes, [B, 2·L, K]."""
        if twice and not matrix.outliers:
            x = self._split(x, matrix.block)
        key = (x.name, matrix.block, matrix.sum_copies, matrix.outliers)
        columns = self._table_columns if matrix.outliers and in_table else self._columns
        made = self._once(key, lambda: columns(x, matrix))
        # What has been rearranged is split afterwards: the blocks are others.
        return self._split(made, matrix.block) if twice and matrix.outliers else made

    def group_sums(self, x: Value, block: int) -> Value:
        """x [B, L, K] → the sums of its blocks [B, L, G]."""
        return self._once(("sums", x.name, block), lambda: self._sum(x, block))

    def join(self, name: str, y: Value) -> Value:
        """Both passes [B, 2·L, N] → their sum [B, L, N]."""
        return self._two_pass.join(name, y)

    def _split(self, x: Value, block: int) -> Value:
        return self._once(("split", x.name, block), lambda: self._two_pass.split(x, block))

    def _once(self, key: tuple, make: Callable[[], Value]) -> Value:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _sum(self, x: Value, block: int) -> Value:
        graph = self._graph
        blocks = graph.op("Reshape", x, graph.ints(0, 0, -1, block))
        return graph.op("ReduceSum", blocks, graph.ints(3), keepdims=0)

    def _columns(self, x: Value, matrix: NBits) -> Value:
        """x, its group sums where residuals need them, and outliers once more."""
        graph = self._graph
        copies = min(matrix.sum_copies, 1) if matrix.outliers else matrix.sum_copies
        if copies:
            sums = [self.group_sums(x, matrix.block)] * copies
            x = graph.op("Concat", x, *sums, axis=-1)
        if matrix.outliers:
            x = graph.op("Gather", x, graph.constant(sources(matrix)), axis=-1)
        return x

    def _table_columns(self, x: Value, matrix: NBits) -> Value:
        """x without its outliers, then their coarse part, the rest, and the coarse part again."""
        graph = self._graph
        others = np.ones(matrix.residual.shape[1] * matrix.block, np.float32)
        others[list(matrix.outliers)] = 0
        without = graph.op("Mul", x, graph.constant(others))
        apart = graph.op("Gather", x, graph.ints(*matrix.outliers), axis=-1)
        coarse, rest = self._two_pass.parts(apart, matrix.block)
        return graph.op("Concat", without, coarse, rest, coarse, axis=-1)
