"""The cache of every token so far."""

import mlx.core as mx

from ...kernels.spec import AttentionSpec
from .buffers import TokenBuffers
from .storage import PLAIN, Storage


class KVCache:
    """Keys and values of all tokens of B sequences of one length, in buffers that grow in steps."""

    def __init__(self, storage: Storage = PLAIN) -> None:
        self.length = 0  # tokens
        self._storage = storage
        self._buffers = TokenBuffers()

    @property
    def offset(self) -> int:
        """The position of the next token."""
        return self.length

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """Append keys and values [B, K, L, D], then attend with q [B, H, L, D] to what is there.

        `arrays` are those of `kernels.dispatch.attention`: sinks, slopes, lse.
        """
        return self._storage.attend(q, self.append(keys, values), spec, **arrays)

    def kept(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values [B, K, L, D] as attention reads them once they are stored."""
        return self._storage.decode(self._storage.encode(keys, values))

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """Append [B, K, L, D]; the stored parts of all that the new tokens may see, S tokens."""
        parts = self._storage.encode(keys, values)
        end = self.length + keys.shape[2]
        self._buffers.reserve(parts, end)
        self._buffers.write(self.length, parts)
        self.length = end
        return self._buffers.read(0, end)

    @property
    def earliest(self) -> int:
        """The smallest length above 0 that `rollback` accepts; 0 it accepts always."""
        return 0

    def rollback(self, length: int) -> None:
        """Forget all tokens after the first `length`; the buffers stay. Raises ValueError."""
        check_rollback(self.length, length)
        self.length = length

    def fork(self) -> "KVCache":
        """An independent cache of the same tokens."""
        other = KVCache(self._storage)
        other.length, other._buffers = self.length, self._buffers.fork()
        return other

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result."""
        return self._buffers.arrays

    def saved(self) -> dict[str, mx.array]:
        """What `load` needs to bring back an equal cache."""
        parts = self._buffers.read(0, self.length)
        return dict(zip(self._storage.names, parts, strict=bool(parts)))  # an empty cache has none

    def load(self, saved: dict[str, mx.array]) -> None:
        """Take over what a cache of this kind and storage `saved`. Raises KeyError for others."""
        parts = [saved[name] for name in self._storage.names]
        self.length = parts[0].shape[2]
        self._buffers.reserve(parts, self.length)
        self._buffers.write(0, parts)


def check_rollback(present: int, length: int) -> None:
    """Raise ValueError unless 0 <= length <= present."""
    if not 0 <= length <= present:
        raise ValueError(f"cannot roll back from {present} tokens to {length}")
