"""A batch on onnxruntime: sequences in the slots of one shared buffer, one run a step."""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from .batch import Closed, Slots, check_step
from .engine import EngineInfo
from .ort_caches import Buffers, SharedCaches
from .ort_graph import Graph, plain_failures
from .ort_session import OrtSession


def takes_batches(graph: Graph) -> bool:
    """Whether several sequences of any lengths can go through one run of `graph`.

    GroupQueryAttention tells rows of a batch apart by the mask; a rotation that depends on length
    is chosen once for all of them.
    """
    fixed = any(isinstance(arg.shape[0], int) for arg in _batched_inputs(graph))
    return graph.shared and graph.rope_switch is None and not fixed


class OrtBatch:
    """Fulfils `runtime.engine.Batch`, for a graph that `takes_batches`.

    The sessions of a step are brought into neighbouring slots, so that one address and a row count
    describe the keys of them all. The mask, right padded, says how many tokens each row has.
    """

    def __init__(self, graph: Graph, info: EngineInfo, slots: int, capacity: int) -> None:
        self.slots = slots
        self._graph, self._info = graph, info
        self._seats = Slots(slots)
        self._buffers = Buffers(graph, slots)
        self._binding = graph.session.io_binding()
        self._bound = (0, 0, 0)  # first slot, rows and capacity of the caches that are bound
        self._ids, self._positions = (np.zeros((slots, 1), np.int64) for _ in range(2))
        self._mask = np.zeros(0, np.int64)
        self._places = np.arange(0)  # 0…capacity−1
        self._logits = np.zeros((slots, 1, graph.vocab_size), graph.logits_dtype)
        self._sorted = np.zeros((slots, graph.vocab_size), graph.logits_dtype)
        self._count = np.ones(graph.num_logits or (), np.int64)
        if graph.num_logits is not None:
            self._bind_input("num_logits", self._count)
        self._reserve(capacity)

    def open(self) -> OrtSession:
        session = _SlotSession(self)
        self._seats.seat(session)
        return session

    def close(self, session: OrtSession) -> None:
        self._seats.leave(session)
        session.end()

    def step(self, sessions: Sequence[OrtSession], tokens: Sequence[int]) -> np.ndarray:
        self._seats.check(sessions)
        check_step(self._info, sessions, tokens)
        self._reserve(max(session.length for session in sessions) + 1)
        first = self._seats.gather(sessions, self._swap)
        rows = [session.slot - first for session in sessions]
        self._bind(first, sessions, rows, tokens)
        with plain_failures(f"on a batch of {len(rows)}"):
            self._graph.session.run_with_iobinding(self._binding)
        for session, token in zip(sessions, tokens, strict=True):
            session.advance([token])
        return self._in_order(rows).astype(np.float32, copy=False)

    def seat_copy(self, session: "_SlotSession", other: "_SlotSession") -> None:
        """Give `other` a slot, and into it what `session` holds."""
        self._seats.check([session])
        self._seats.seat(other)
        self._buffers.copy(session.slot, other.slot, session.length)

    def _swap(self, first: int, second: int) -> None:
        lengths = self._seats.length(first), self._seats.length(second)
        self._buffers.swap(first, second, lengths)

    def _reserve(self, length: int) -> None:
        self._buffers.reserve(length)
        capacity = self._buffers.capacity
        if capacity > self._places.size:
            self._mask = np.zeros(self.slots * capacity, np.int64)
            self._places = np.arange(capacity)

    def _bind(
        self,
        first: int,
        sessions: Sequence[OrtSession],
        rows: Sequence[int],
        tokens: Sequence[int],
    ) -> None:
        """Bind all that a run reads and writes; what the last one had is still bound."""
        names, count = self._graph.names, len(rows)
        wanted = (first, count, self._buffers.capacity)
        if wanted != self._bound:
            logits = self._logits[:count]
            self._bind_input(names.input_ids, self._ids[:count])
            if self._graph.positions:
                self._bind_input(names.position_ids, self._positions[:count])
            # Before the caches: it is the first of the outputs.
            self._binding.bind_output(
                names.logits, "cpu", 0, logits.dtype.type, logits.shape, logits.ctypes.data
            )
            self._buffers.bind(self._binding, slice(first, first + count))
            self._bound = wanted
        lengths = [session.length for session in sessions]
        self._ids[rows, 0] = tokens
        self._positions[rows, 0] = lengths
        longest = max(lengths) + 1
        mask = self._mask[: count * longest].reshape(count, longest)
        seen = self._positions[:count]  # a row sees its new token too
        np.less_equal(self._places[:longest], seen, out=mask, casting="unsafe")
        self._bind_input(names.attention_mask, mask)

    def _bind_input(self, name: str, array: np.ndarray) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _in_order(self, rows: Sequence[int]) -> np.ndarray:
        """The logits [n, V] of these rows."""
        logits, count = self._logits[:, 0], len(rows)
        if list(rows) == list(range(count)):
            return logits[:count]
        # "clip" never comes to act; any other mode would copy first.
        return np.take(logits, rows, axis=0, out=self._sorted[:count], mode="clip")


class _SlotSession(OrtSession):
    """A session in a slot of `batch`."""

    def __init__(self, batch: OrtBatch) -> None:
        super().__init__(batch._graph, batch._info, SharedCaches(batch._graph, batch._buffers))
        self._batch = batch

    @property
    def slot(self) -> int:
        return self._caches.slot

    @slot.setter
    def slot(self, slot: int) -> None:
        self._caches.slot = slot

    def fork(self) -> OrtSession:
        other = _SlotSession(self._batch)
        self._batch.seat_copy(self, other)
        other._length, other._tokens = self._length, list(self._tokens)
        return other

    def end(self) -> None:
        """The slot is another's from now on."""
        self._caches = Closed()


def _batched_inputs(graph: Graph) -> list[ort.NodeArg]:
    named = {graph.names.input_ids, graph.names.attention_mask, *graph.past_names}
    return [arg for arg in graph.session.get_inputs() if arg.name in named]
