"""A batch on MLX: sequences in the rows of ragged caches, one forward a step."""

from collections.abc import Sequence

import mlx.core as mx

from ..runtime.batch import Closed, Slots, check_step
from ..runtime.engine import Engine
from ..runtime.memory import check_memory
from .caches.ragged import RaggedCache
from .caches.storage import Storage
from .decoder import Decoder
from .mlx_ops import MlxOps
from .session import MlxSession


class MlxBatch:
    """Fulfils `runtime.engine.Batch`, for a decoder whose rotation does not depend on length.

    A layer with a sliding window keeps all tokens here.
    """

    def __init__(
        self, engine: Engine, decoder: Decoder, storage: Storage, slots: int, capacity: int
    ) -> None:
        self.slots = slots
        self.engine, self.decoder = engine, decoder
        self.caches = [RaggedCache(slots, storage) for _ in range(decoder.config.layers)]
        self._seats = Slots(slots)
        self._capacity = 0  # tokens a slot
        self.reserve(capacity)

    def open(self) -> MlxSession:
        session = _SlotSession(self)
        self._seats.seat(session)
        return session

    def close(self, session: MlxSession) -> None:
        self._seats.leave(session)
        session.rollback(0)
        session.caches = [Closed()]

    def step(self, sessions: Sequence[MlxSession], tokens: Sequence[int]) -> mx.array:
        self._seats.check(sessions)
        check_step(self.engine.info, sessions, tokens)
        self.reserve(max(session.length for session in sessions) + 1)
        first, count = self._seats.gather(sessions, self._swap), len(sessions)
        rows = [session.slot - first for session in sessions]
        order = sorted(range(count), key=rows.__getitem__)  # by row, which of the sessions it is
        ids = mx.array([[tokens[index]] for index in order], mx.int32)  # [n, 1]
        caches = [cache.some(first, count) for cache in self.caches]
        logits = self.decoder(MlxOps(last=1), ids, caches)[:, 0]
        if order != list(range(count)):
            logits = logits[mx.array(rows)]
        mx.async_eval(logits, [cache.state for cache in self.caches])
        for session, token in zip(sessions, tokens, strict=True):
            session.advance(token)
        return logits

    def copy(self, session: "_SlotSession", other: "_SlotSession") -> None:
        """Give `other` a slot, and into it what `session` holds."""
        self._seats.check([session])
        self._seats.seat(other)
        for cache in self.caches:
            cache.copy_row(session.slot, other.slot)

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens a slot, by doubling up to the context. Raises InputError
        when memory is short.
        """
        if length <= self._capacity:
            return
        info = self.engine.info
        capacity = min(max(length, 2 * self._capacity), info.context)
        added = (capacity - self._capacity) * self.slots * info.kv_bytes_per_token
        check_memory(added, f"a KV cache of {capacity} tokens in each of {self.slots} slots")
        self._capacity = capacity
        for cache in self.caches:
            cache.reserved = capacity

    def _swap(self, first: int, second: int) -> None:
        for cache in self.caches:
            cache.swap_rows(first, second)


class _SlotSession(MlxSession):
    """A session in a slot of `batch`."""

    def __init__(self, batch: MlxBatch) -> None:
        super().__init__(batch.engine, batch.decoder, [])
        self._batch = batch
        self._slot = 0

    @property
    def slot(self) -> int:
        return self._slot

    @slot.setter
    def slot(self, slot: int) -> None:
        self._slot = slot
        self.caches = [cache.row(slot) for cache in self._batch.caches]

    def fork(self) -> MlxSession:
        other = _SlotSession(self._batch)
        self._batch.copy(self, other)
        other._tokens = list(self._tokens)
        return other

    def _reserve(self, total: int) -> None:
        self._batch.reserve(total)
