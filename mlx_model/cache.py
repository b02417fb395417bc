"""The KV cache of one layer on the MLX engine."""

import mlx.core as mx

_STEP = 256  # tokens by which the buffers grow


class KVCache:
    """Keys and values of all tokens so far, in buffers that grow in steps.

    Both buffers are [B, K, capacity, D]; the first `length` positions are in use. Arrays of MLX
    are values: a fork shares them until either side writes.
    """

    def __init__(self) -> None:
        self.length = 0  # tokens
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append keys and values [B, K, L, D]; return all of them, each [B, K, S, D]."""
        end = self.length + keys.shape[2]
        self._reserve(keys, values, end)
        self.keys[..., self.length : end, :] = keys
        self.values[..., self.length : end, :] = values
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def _reserve(self, keys: mx.array, values: mx.array, end: int) -> None:
        """Grow the buffers to hold `end` tokens, to the next multiple of the step."""
        capacity = 0 if self.keys is None else self.keys.shape[2]
        if end <= capacity:
            return
        added = -(-end // _STEP) * _STEP - capacity
        self.keys = _grown(self.keys, keys, added)
        self.values = _grown(self.values, values, added)

    def rollback(self, length: int) -> None:
        """Forget all tokens after the first `length`; the buffers stay."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back from {self.length} tokens to {length}")
        self.length = length

    def fork(self) -> "KVCache":
        """An independent cache of the same tokens."""
        other = KVCache()
        other.length = self.length
        if self.keys is not None:
            # A new array object each: writing through one must not be seen by the other.
            other.keys, other.values = mx.array(self.keys), mx.array(self.values)
        return other

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate together with a step's result."""
        return [] if self.keys is None else [self.keys, self.values]


def _grown(buffer: mx.array | None, like: mx.array, added: int) -> mx.array:
    """`buffer` with `added` more positions, or a new one shaped like `like` [B, K, L, D]."""
    batch, heads, _, head_dim = like.shape
    room = mx.zeros((batch, heads, added, head_dim), like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
