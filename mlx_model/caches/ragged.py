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

    A forward of all rows appends as many tokens to each; `some` gives the cache of neighbouring
    ones alone, and `row` that of a single one, for a prompt or a rollback of its own.
    """

    def __init__(self, rows: int, storage: Storage = PLAIN) -> None:
        self.lengths = [0] * rows  # tokens a row
        self.storage = storage
        self.buffers = TokenBuffers()
        self.reserved = 0  # tokens a row for which there is room from the first append on

    @property
    def offset(self) -> mx.array:
        """int32 [B]: the position of each row's next token."""
        return self._all.offset

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """As `RaggedRows.attend`, of all rows."""
        return self._all.attend(q, keys, values, spec, **arrays)

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """As `RaggedRows.append`, to all rows."""
        return self._all.append(keys, values)

    def some(self, first: int, count: int) -> "RaggedRows":
        """The cache of `count` neighbouring rows."""
        return RaggedRows(self, first, count)

    def row(self, index: int) -> "RaggedRow":
        """The cache of one row, good until rows are swapped."""
        return RaggedRow(self, index)

    def make_room(self, parts: list[mx.array], tokens: int) -> None:
        """Room for `tokens` a row; `parts` [B, K, L, ·] say what is kept of them."""
        self.buffers.reserve(parts, max(tokens, self.reserved), rows=len(self.lengths))

    def copy_row(self, source: int, target: int) -> None:
        """Give one row what another holds."""
        self._put(target, self._taken(source), self.lengths[source])

    def swap_rows(self, first: int, second: int) -> None:
        """Exchange two rows."""
        kept, length = self._taken(first), self.lengths[first]
        self.copy_row(second, first)
        self._put(second, kept, length)

    def _taken(self, index: int) -> list[mx.array]:
        """Copies of a row's tokens: a view would make the next write copy all rows."""
        length = self.lengths[index]
        parts = self.buffers.read(0, length, slice(index, index + 1)) if length else []
        parts = [mx.contiguous(part) for part in parts]
        mx.eval(parts)
        return parts

    def _put(self, index: int, parts: list[mx.array], length: int) -> None:
        if length:
            self.buffers.write(0, parts, slice(index, index + 1))
        self.lengths[index] = length

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result."""
        return self.buffers.arrays

    @property
    def _all(self) -> "RaggedRows":
        return RaggedRows(self, 0, len(self.lengths))


class RaggedRows:
    """Neighbouring rows of a `RaggedCache`, n of them, for a forward of these alone."""

    def __init__(self, batch: RaggedCache, first: int, count: int) -> None:
        self._batch = batch
        self._rows = slice(first, first + count)

    @property
    def offset(self) -> mx.array:
        """int32 [n]: the position of each row's next token."""
        return mx.array(self._batch.lengths[self._rows], mx.int32)

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """Append keys and values [n, K, L, D], then attend with q [n, H, L, D], row by row.

        `arrays` are those of `kernels.dispatch.attention`: sinks, slopes, lse.
        """
        parts = self.append(keys, values)
        return self._batch.storage.attend(q, parts, spec, ends=self.offset, **arrays)

    def append(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """Append [n, K, L, D]; the stored parts of these rows, S the longest one's tokens."""
        batch, rows = self._batch, self._rows
        lengths, added = batch.lengths[rows], keys.shape[2]
        if keys.shape[0] != len(lengths):
            raise ValueError(f"{keys.shape[0]} rows do not fit a batch of {len(lengths)}")
        parts = batch.storage.encode(keys, values)
        longest = max(lengths) + added
        batch.make_room(parts, longest)
        indices = mx.arange(rows.start, rows.stop)[:, None]  # [n, 1]
        positions = self.offset[:, None] + mx.arange(added)  # [n, L]
        for array, part in zip(batch.buffers.arrays, parts, strict=True):
            array[indices, :, positions] = part.swapaxes(1, 2)
        batch.lengths[rows] = [length + added for length in lengths]
        return batch.buffers.read(0, longest, rows)


class RaggedRow:
    """One sequence of a `RaggedCache`, with what `KVCache` offers but for a fork; B is 1."""

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
        batch, rows = self._batch, self._rows
        parts = batch.storage.encode(keys, values)
        start, end = self.length, self.length + keys.shape[2]
        batch.make_room(parts, end)
        batch.buffers.write(start, parts, rows)
        batch.lengths[self._index] = end
        return batch.buffers.read(0, end, rows)

    @property
    def earliest(self) -> int:
        """As `KVCache.earliest`."""
        return 0

    def rollback(self, length: int) -> None:
        """Forget this row's tokens after the first `length`. Raises ValueError."""
        check_rollback(self.length, length)
        self._batch.lengths[self._index] = length

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result: those of the whole batch."""
        return self._batch.state

    def saved(self) -> dict[str, mx.array]:
        """As `KVCache.saved`; with the length, which a cache of a window asks for."""
        parts = self._batch.buffers.read(0, self.length, self._rows)
        named = dict(zip(self._batch.storage.names, parts, strict=bool(parts)))
        return {**named, "length": mx.array(self.length)}

    @property
    def _rows(self) -> slice:
        return slice(self._index, self._index + 1)
