"""A session on onnxruntime: one sequence, B = 1, run through IO binding."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .cache_file import CacheFile, write_cache
from .engine import Choose, EngineInfo, Progress, check_room, check_tokens, verifiable_tokens
from .errors import Cancelled
from .memory import check_memory
from .ort_caches import STEP, Caches, GrowingCaches, SharedCaches
from .ort_graph import CHUNK, MERGED, Graph, plain_failures


class OrtSession:
    """Fulfils `runtime.engine.Session`.

    Whatever a decode step reads and writes stays bound from one step to the next, but for the
    attention mask, which is one longer each time, and the caches of a graph that does not share.
    Where the graph rotates long sequences otherwise, crossing that length computes all tokens anew,
    and so does each token beyond it where every length has a rotation of its own: a session says
    what one prefill would say.
    """

    def __init__(self, graph: Graph, info: EngineInfo, caches: Caches | None = None) -> None:
        self._graph, self._info = graph, info
        self._caches = caches or (SharedCaches if graph.shared else GrowingCaches)(graph)
        self._length = 0
        self._tokens: list[int] = []  # those in the caches
        self._rotated_as = 0  # the shortest sequence whose keys are rotated as the cached ones
        self._rotation_length = np.zeros(1, np.int64)
        self._binding = graph.session.io_binding()
        self._ids = np.zeros((1, CHUNK), np.int64)
        self._positions = np.zeros((1, CHUNK), np.int64)
        self._mask = np.ones((1, 0), np.int64)
        self._logits = np.zeros((1, 1, graph.vocab_size), graph.logits_dtype)
        self._cached = np.zeros(1, np.bool_)  # whether there is a cache, for a merged graph
        self._count = np.zeros(graph.num_logits or (), np.int64)
        self._bound_length = 0  # L of the inputs that are bound
        if graph.num_logits is not None:
            self._bind_input("num_logits", self._count, graph.num_logits)
        if graph.rope_switch is not None:
            self._bind_input("rotation_length", self._rotation_length, (1,))
        if graph.merged:
            self._bind_input(MERGED, self._cached, (1,))

    @property
    def length(self) -> int:
        return self._length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens at once."""
        if length > self._mask.shape[1]:
            self._mask = np.ones((1, max(-(-length // STEP) * STEP, 2 * self._mask.size)), np.int64)
        self._caches.reserve(length)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> np.ndarray:
        self._check(tokens)
        self.reserve(self._length + len(tokens))
        self._rotate_for(self._length + len(tokens))
        for start, part in self._parts(tokens):
            if should_stop is not None and should_stop():
                raise Cancelled(f"prefill was stopped after {start} of {len(tokens)} tokens")
            logits = self._forward(part)
            if progress is not None:
                progress(start + len(part), len(tokens))
        return logits.copy()

    def step(self, token: int) -> np.ndarray:
        self._check([token])
        self._rotate_for(self._length + 1)
        return self._forward([token]).copy()

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        self._check(tokens)
        vocab_size = self._graph.vocab_size
        check_memory(4 * len(tokens) * vocab_size, f"the logits of {len(tokens)} tokens")
        logits = np.empty((1, len(tokens), vocab_size), np.float32)
        self._rotate_for(self._length + len(tokens))
        for start, part in self._parts(tokens, all_rows=True):
            self._run(part, logits[:, start : start + len(part)], 0)
        return logits[0]

    def verifiable(self, length: int, count: int) -> int:
        alike = self._graph.rows_alike or count
        count = min(count, alike, self._graph.run_length(length, all_rows=True))
        return verifiable_tokens(length, count, self._info.context, self._rotation_of)

    def decode(self, logits: np.ndarray, choose: Choose) -> Iterator[int]:
        index = 0
        while True:
            token = int(choose(logits, index))
            yield token
            self._check([token])
            self._rotate_for(self._length + 1)
            logits = self._forward([token])
            index += 1

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll back from {self._length} tokens to {length}")
        if length < self._length:
            self._caches.truncate(length)
            self._length = length
            del self._tokens[length:]

    def fork(self) -> "OrtSession":
        other = OrtSession(self._graph, self._info, self._caches.fork(self._length))
        other._length, other._tokens = self._length, list(self._tokens)
        other._rotated_as = self._rotated_as
        return other

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        if len(tokens) != self._length:
            raise ValueError(f"{len(tokens)} tokens do not stand for a cache of {self._length}")
        self._rotate_for(self._length)  # as `load` will take it to be, whatever was rolled back
        write_cache(path, self._info.fingerprint, tokens, self._caches.layers(self._length))

    def load(self, file: CacheFile) -> None:
        """Fill this empty session from a saved cache."""
        length = len(file.tokens)
        self.reserve(length)
        for index, layer in enumerate(self._graph.layers):
            shape = (layer.kv_heads, length, layer.head_dim)
            keys = file.array(f"{index}.keys", shape, layer.dtype)
            self._caches.put(index, (keys, file.array(f"{index}.values", shape, layer.dtype)))
        self._length, self._tokens = length, list(file.tokens)
        self._rotated_as = self._rotation_of(length)

    def _check(self, tokens: Sequence[int]) -> None:
        check_tokens(tokens, self._info.vocab_size)
        check_room(self._length, len(tokens), self._info.context)

    def _rotation_of(self, length: int) -> int:
        """The shortest sequence that is rotated as one of `length` tokens; 0 for any short one."""
        switch = self._graph.rope_switch
        if switch is None or length <= switch:
            return 0
        return length if self._graph.rope_grows else switch + 1

    def _rotate_for(self, total: int) -> None:
        """Make the cached keys, and those of the next runs, those of a sequence of `total`."""
        wanted = self._rotation_of(total)
        self._rotation_length[0] = total
        if wanted != self._rotated_as and self._length:
            tokens = list(self._tokens)
            self.rollback(0)
            for _, part in self._parts(tokens):
                self._forward(part)
        self._rotated_as = wanted

    def _parts(
        self, tokens: Sequence[int], *, all_rows: bool = False
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """What one run after the other takes, and where it begins in `tokens`."""
        start = 0
        while start < len(tokens):
            part = tokens[start : start + self._graph.run_length(self._length, all_rows)]
            yield start, part
            start += len(part)

    def _forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Append the `tokens` of one run; the last one's logits, float32 [V], valid until the next
        call.
        """
        last_row = self._graph.num_logits is not None or len(tokens) == 1
        self._run(tokens, self._logits, 1 if last_row else 0)
        return self._logits[0, 0].astype(np.float32, copy=False)

    def _run(self, tokens: Sequence[int], logits: np.ndarray, count: int) -> None:
        """Append `tokens`; the logits of the last `count` of them (0: all) go to `logits`, of which
        there may be fewer rows, for the last ones.
        """
        total = self._length + len(tokens)
        self.reserve(total)
        self._count[...] = count
        self._cached[...] = self._length > 0
        self._bind_tokens(tokens, total)
        name = self._graph.names.logits
        if count:
            dtype, address = logits.dtype.type, logits.ctypes.data
            self._binding.bind_output(name, "cpu", 0, dtype, logits.shape, address)
        else:
            # Graphs state one row of logits: onnxruntime takes no bound buffer for more.
            self._binding.bind_output(name, "cpu")
        self._caches.bind(self._binding)
        with plain_failures(f"after {self._length} tokens"):
            self._graph.session.run_with_iobinding(self._binding)
        if not count:
            logits[...] = self._binding.get_outputs()[0].numpy()[:, -logits.shape[1] :]
        self._caches.take(self._binding)
        self.advance(tokens)

    def advance(self, tokens: Sequence[int]) -> None:
        """Count `tokens` whose keys and values are in the caches."""
        self._length += len(tokens)
        self._tokens.extend(tokens)

    def _bind_tokens(self, tokens: Sequence[int], total: int) -> None:
        new, names = len(tokens), self._graph.names
        if new > self._ids.size:
            self._ids, self._positions = (np.zeros((1, new), np.int64) for _ in range(2))
        self._ids[0, :new] = tokens
        self._positions[0, :new] = np.arange(self._length, total)
        if new != self._bound_length:
            self._bind_input(names.input_ids, self._ids, (1, new))
            if self._graph.positions:
                self._bind_input(names.position_ids, self._positions, (1, new))
            self._bound_length = new
        self._bind_input(names.attention_mask, self._mask, (1, total))

    def _bind_input(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)
