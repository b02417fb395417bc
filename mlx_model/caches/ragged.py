"""The cache of a batch whose sequences have their own lengths."""

import mlx.core as mx

from ...kernels.spec import AttentionSpec
from .buffers import TokenBuffers
from .full import check_rollback
from .storage import PLAIN, Storage


class RaggedCache:
    """Keys and values of B sequences, each from the front of its own row, right padded::

        row 0   0 1 2 3 4 . .      lengths = [5, 2, 0]
        row 1   0 1 . . . . .      `ends` tells attention where each row stops
        row 2   . . . . . . .

    A forward of all rows appends as many tokens to each; `row` gives the cache of one of them,
    for a prompt or a rollback of its own.
    """

    def __init__(self, rows: int = 0, storage: Storage = PLAIN) -> None:
        self.lengths = [0] * rows  # tokens a row
        self.storage = storage
        self.buffers = TokenBuffers()

    @property
    def offset(self) -> mx.array:
        """int32 [B]: the position of each row's next token."""
        return mx.array(self.lengths, mx.int32)

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """Append keys and values [B, K, L, D], then attend with q [B, H, L, D], row by row.

        `arrays` are those of `kernels.dispatch.attention`: sinks, slopes, lse.
        """
        parts = self.append(keys, values)
        return self.storage.attend(q, parts, spec, ends=self.offset, **arrays)

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """Append [B, K, L, D]; the stored parts of all rows, S the longest row's tokens."""
        if keys.shape[0] != len(self.lengths):
            raise ValueError(f"{keys.shape[0]} rows do not fit a batch of {len(self.lengths)}")
        parts = self.storage.encode(keys, values)
        added, longest = keys.shape[2], max(self.lengths) + keys.shape[2]
        self.buffers.reserve(parts, longest)
        rows = mx.arange(len(self.lengths))[:, None]  # [B, 1]
        positions = self.offset[:, None] + mx.arange(added)  # [B, L]
        for array, part in zip(self.buffers.arrays, parts, strict=True):
            array[rows, :, positions] = part.swapaxes(1, 2)
        self.lengths = [length + added for length in self.lengths]
        return self.buffers.read(0, longest)

    def row(self, index: int) -> "RaggedRow":
        """The cache of one row, good until rows are added or removed."""
        return RaggedRow(self, index)

    def add_row(self) -> int:
        """Add an empty row behind the others; its index."""
        self.buffers.arrays = [
            mx.concatenate([array, mx.zeros((1, *array.shape[1:]), array.dtype)])
            for array in self.buffers.arrays
        ]
        self.lengths.append(0)
        return len(self.lengths) - 1

    def remove_row(self, index: int) -> None:
        """Forget a row; those behind it move up by one."""
        del self.lengths[index]
        self.buffers.arrays = [
            mx.concatenate([array[:index], array[index + 1 :]])
            for array in self.buffers.arrays
            if self.lengths
        ]

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result."""
        return self.buffers.arrays


class RaggedRow:
    """One sequence of a `RaggedCache`, with what `KVCache` offers; B is 1."""

    def __init__(self, batch: RaggedCache, index: int) -> None:
        self._batch, self._index = batch, index

    @property
    def length(self) -> int:
        """Tokens of this row."""
        return self._batch.lengths[self._index]

    @property
    def offset(self) -> int:
        """The position of the row's next token."""
        return self.length

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """As `KVCache.attend`, for this row alone."""
        return self._batch.storage.attend(q, self.append(keys, values), spec, **arrays)

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """Append [1, K, L, D] to this row; its stored parts, S its tokens."""
        batch, rows = self._batch, slice(self._index, self._index + 1)
        parts = batch.storage.encode(keys, values)
        start, end = self.length, self.length + keys.shape[2]
        batch.buffers.reserve(parts, end, rows=len(batch.lengths))
        batch.buffers.write(start, parts, rows)
        batch.lengths[self._index] = end
        return batch.buffers.read(0, end, rows)

    def rollback(self, length: int) -> None:
        """Forget this row's tokens after the first `length`. Raises ValueError."""
        check_rollback(self.length, length)
        self._batch.lengths[self._index] = length

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result: those of the whole batch."""
        return self._batch.state
