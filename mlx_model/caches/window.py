"""The cache of a layer with a sliding window: memory for the window, not for the context.

A ring would hand attention its keys in the wrong order. Here tokens are appended until the buffer
is full; then those still needed move to its front, so keys always lie in the order of time and
masks, ALiBi and bottom-right alignment hold as they do for the full cache::

    W = 3, margin = 4      2 3 4 5 6 7 8     tokens 2 to 8 in a full buffer
    append token 9         6 7 8 9 . . .     7 and 8 it sees, 6 and 7 a rollback by 2 needs
"""

import mlx.core as mx

from ...kernels.spec import AttentionSpec
from .buffers import TokenBuffers, joined
from .full import KVCache, check_rollback
from .storage import PLAIN, Storage

MARGIN = 256  # tokens


class WindowCache(KVCache):
    """Keys and values of the last tokens: at most `window` + `margin` are held.

    Half of the margin stays behind the window, so that the last `margin // 2` tokens can always
    be rolled back; the other half is room to append before tokens must move.
    """

    def __init__(self, window: int, storage: Storage = PLAIN, margin: int = MARGIN) -> None:
        super().__init__(storage)
        if window < 1 or margin < 0:
            raise ValueError(f"a window of {window} keys with a margin of {margin} is impossible")
        self._window, self._margin = window, margin
        self._first = 0  # the token at the front of the buffers

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """As `KVCache.attend`. Raises ValueError when `spec` looks back past the window."""
        if spec.window is None or spec.window > self._window:
            raise ValueError(f"a cache of a window of {self._window} keys cannot serve {spec}")
        return super().attend(q, keys, values, spec, **arrays)

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """As `KVCache.append`; S is at most W − 1 + L."""
        parts = self._storage.encode(keys, values)
        held, added = self.length - self._first, keys.shape[2]
        seen = min(held, self._window - 1) + added
        self.length += added
        most = self._window + self._margin
        if held + added > most:
            return self._move(parts, held, seen)
        self._buffers.reserve(parts, held + added, most=most)
        self._buffers.write(held, parts)
        return self._buffers.read(held + added - seen, held + added)

    def _move(self, parts: list[mx.array], held: int, seen: int) -> list[mx.array]:
        """Append `parts` where they do not fit: into fresh buffers, with the last tokens alone."""
        kept, most = self._window - 1 + self._margin // 2, self._window + self._margin
        before = min(max(seen, kept) - parts[0].shape[2], held)
        if before > 0:
            parts = joined(self._buffers.read(held - before, held), parts)
        self._buffers = TokenBuffers()
        self._buffers.reserve(parts, most, most=most)
        self._buffers.write(0, _last(parts, kept))
        self._first = self.length - kept
        return _last(parts, seen)

    @property
    def earliest(self) -> int:
        return self._first + self._window - 1 if self._first else 0

    def rollback(self, length: int) -> None:
        """As `KVCache.rollback`. Raises ValueError also when keys that the next query would need
        are no longer held; then the tokens must be appended again, after a rollback to 0."""
        check_rollback(self.length, length)
        if 0 < length < self.earliest:
            raise ValueError(
                f"cannot roll back from {self.length} tokens to {length}: the window of "
                f"{self._window} keys reaches back to token {max(length - self._window + 1, 0)}, "
                f"and tokens before {self._first} are gone"
            )
        self.length = length
        if length == 0:
            self._first = 0

    def fork(self) -> "WindowCache":
        other = WindowCache(self._window, self._storage, self._margin)
        other.length, other._first = self.length, self._first
        other._buffers = self._buffers.fork()
        return other

    def saved(self) -> dict[str, mx.array]:
        parts = self._buffers.read(0, self.length - self._first)
        named = dict(zip(self._storage.names, parts, strict=bool(parts)))  # an empty cache has none
        return {**named, "length": mx.array(self.length)}

    def load(self, saved: dict[str, mx.array]) -> None:
        super().load(saved)
        held, self.length = self.length, saved["length"].item()
        self._first = self.length - held


def _last(parts: list[mx.array], tokens: int) -> list[mx.array]:
    """Views of the last `tokens` tokens."""
    start = parts[0].shape[2] - tokens
    return [part[:, :, start:] for part in parts]
