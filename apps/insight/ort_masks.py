"""What masks and biases of an onnxruntime graph say, looked at as a text is run.

Shapes: H query heads · L queries of a run · S keys so far.
"""

import numpy as np

from ...runtime.errors import InputError

# Masks add the lowest number of their type, ALiBi at most one for each token of distance.
_HIDDEN = {np.dtype(np.float32): -1e8, np.dtype(np.float16): -3e4}


class Masks:
    """The masks of one layer, run after run: only windows and slopes can stand in them.

    A mask is bool, true for keys that are seen, or what is added to the scores; a bias that falls
    evenly with distance is ALiBi's (arXiv:2108.12409).
    """

    def __init__(self, graph: str, causal: bool) -> None:
        """`graph` is named in errors; `causal`: the node itself hides later keys."""
        self._graph, self._causal = graph, causal
        self._counts: list[np.ndarray] = []  # keys that each query sees
        self._slopes: np.ndarray | None = None  # [H]
        self._queries = 0

    def add(self, mask: np.ndarray) -> None:
        """Look at the mask [H or 1, L, S] of the next L queries. Raises InputError."""
        length, total = mask.shape[1:]
        at = self._queries + np.arange(length)[:, None]
        past = np.arange(total) <= at
        hidden = _HIDDEN.get(mask.dtype)
        for head, row in enumerate(mask):
            seen = row if hidden is None else row > hidden
            if self._causal:
                seen = seen & past
            self._count(seen, at, head)
        if hidden is not None:
            self._fall(mask, at, hidden)
        self._queries += length

    def window(self) -> int | None:
        """W, keys; None where all earlier ones were seen. Raises InputError."""
        counts = np.concatenate(self._counts)
        every = np.arange(1, len(counts) + 1)
        if np.array_equal(counts, every):
            return None
        window = int(counts[-1])
        if not np.array_equal(counts, np.minimum(every, window)):
            self._refuse("is no window of one size")
        return window

    def slopes(self, heads: int) -> np.ndarray | None:
        """Float32 [H] of `heads`; None where nothing falls with distance."""
        if self._slopes is None or not self._slopes.any():
            return None
        return np.broadcast_to(self._slopes, heads)

    def _count(self, seen: np.ndarray, at: np.ndarray, head: int) -> None:
        counts = seen.sum(axis=1)
        keys = np.arange(seen.shape[1])
        if not np.array_equal(seen, (keys <= at) & (keys > at - counts[:, None])):
            self._refuse("hides keys between those that are seen")
        if head == 0:
            self._counts.append(counts)
        elif not np.array_equal(counts, self._counts[-1]):
            self._refuse("hides other keys from other heads")

    def _fall(self, mask: np.ndarray, at: np.ndarray, hidden: float) -> None:
        """Take the slopes from the last query's own key and the one before; check all the rest."""
        last, total = int(at[-1, 0]), mask.shape[2]
        if last == 0:
            return
        if self._slopes is None:
            before = mask[:, -1, last - 1]
            fall = (mask[:, -1, last] - before).astype(np.float32)
            self._slopes = np.where(before > hidden, fall, np.float32(0.0))
        tolerance = 2e-3 if mask.dtype == np.float16 else 1e-5
        distance = at - np.arange(total)
        for row, slope in zip(mask, self._slopes, strict=True):
            own = np.take_along_axis(row, at, axis=1)
            seen = (row > hidden) & (distance >= 0)
            lost = np.where(seen, own - row, 0.0)
            wanted = np.where(seen, slope * distance, 0.0)
            if np.abs(lost - wanted).max() > tolerance * max(1.0, np.abs(wanted).max()):
                self._refuse("adds to scores what does not fall evenly with distance")

    def _refuse(self, complaint: str) -> None:
        raise InputError(
            f"{self._graph} has a mask that {complaint}, which cannot be shown; export the model "
            "with `pippin export`"
        )
