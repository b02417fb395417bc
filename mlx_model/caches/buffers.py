"""Arrays that hold tokens along one axis and grow in steps."""

import mlx.core as mx

_STEP = 256  # tokens by which the buffers grow


class TokenBuffers:
    """Arrays [B, K, capacity, ·], one for each part of a `storage.Storage`.

    Arrays of MLX are values: a fork shares them until either side writes.
    """

    def __init__(self) -> None:
        self.arrays: list[mx.array] = []

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.arrays[0].shape[2] if self.arrays else 0

    def reserve(
        self, like: list[mx.array], tokens: int, *, most: int | None = None, rows: int | None = None
    ) -> None:
        """Make room for `tokens`, growing to the next multiple of the step but not past `most`.

        `like` are parts [B, K, L, ·] that say what the arrays look like; `rows` takes B's place.
        """
        if tokens <= self.capacity:
            return
        wanted = -(-tokens // _STEP) * _STEP
        added = (wanted if most is None else min(wanted, most)) - self.capacity
        shapes = [(rows or p.shape[0], p.shape[1], added, p.shape[3]) for p in like]
        room = [mx.zeros(shape, p.dtype) for shape, p in zip(shapes, like, strict=True)]
        self.arrays = joined(self.arrays, room) if self.arrays else room

    def write(self, start: int, parts: list[mx.array], rows: slice = slice(None)) -> None:
        """Set the tokens from `start` on, of the batch's `rows`."""
        end = start + parts[0].shape[2]
        for array, part in zip(self.arrays, parts, strict=True):
            array[rows, :, start:end] = part

    def read(self, start: int, end: int, rows: slice = slice(None)) -> list[mx.array]:
        """Views of the tokens start <= t < end, of the batch's `rows`."""
        return [array[rows, :, start:end] for array in self.arrays]

    def fork(self) -> "TokenBuffers":
        """Independent buffers of the same tokens."""
        other = TokenBuffers()
        # A new array object each: writing through one must not be seen by the other.
        other.arrays = [mx.array(array) for array in self.arrays]
        return other


def joined(first: list[mx.array], second: list[mx.array]) -> list[mx.array]:
    """The tokens of `first`, then those of `second`."""
    return [mx.concatenate(pair, axis=2) for pair in zip(first, second, strict=True)]
