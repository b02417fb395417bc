"""The operations of stacks, computed with MLX; and what stands for their caches."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from ..kernels.spec import AttentionSpec
from .caches.full import KVCache
from .mlx_ops import MlxOps, split_heads
from .relative_bias import RelativeBias


class Padding:
    """Stands for a cache where nothing is kept: tells padding, on the right, from tokens."""

    offset = 0  # the position of the first token

    def __init__(self, mask: mx.array):
        self._seen = mask.astype(mx.bool_)[:, None, None]  # [B, 1, 1, S]

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, bias: mx.array
    ) -> mx.array:
        """q, keys, values [B, H, L, D] → [B, H, L, D]; bias [1, H, L, L] or None."""
        mask = self._seen if bias is None else mx.where(self._seen, bias, -mx.inf)
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=spec.scale, mask=mask)


class BiasedCache(KVCache):
    """Keys and values of all tokens so far, for scores with a bias by distance."""

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, bias: mx.array
    ) -> mx.array:
        """Append keys and values [B, H, L, D], then attend causally; bias [1, H, L, S] or None."""
        if bias is None:
            return super().attend(q, keys, values, spec)
        keys, values = self.append(keys, values)
        rows = mx.arange(self.length - q.shape[2], self.length)[:, None]
        mask = mx.where(mx.arange(self.length) <= rows, bias, -mx.inf)
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=spec.scale, mask=mask)

    def fork(self) -> "BiasedCache":
        """An independent cache of the same tokens."""
        other = BiasedCache(self._storage)
        other.length, other._buffers = self.length, self._buffers.fork()
        return other


class CrossCache:
    """One layer's keys and values of an encoder's output `memory` [B, S, E], made once."""

    def __init__(self, memory: mx.array, mask: mx.array):
        self._memory, self._padding = memory, Padding(mask)
        self._parts: tuple[mx.array, mx.array] | None = None

    def attend(
        self, q: mx.array, spec: AttentionSpec, make: Callable[[mx.array], Sequence[mx.array]]
    ) -> mx.array:
        """q [B, H, L, D] → [B, H, L, D]; `make` gives keys and values [B, H, S, D] of `memory`."""
        if self._parts is None:
            self._parts = tuple(make(self._memory))
        return self._padding.attend(q, *self._parts, spec, None)

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The arrays to evaluate together with a step's result."""
        return self._parts or ()


class MlxStackOps(MlxOps):
    """Fulfils `ops.StackOps`; logits of the last `last` rows, 0 means all."""

    def relative_bias(
        self, table: nn.Module, relative: RelativeBias, x: mx.array, cache: Padding | BiasedCache
    ) -> mx.array:
        length, limit = x.shape[1], relative.max_distance
        rows = mx.arange(cache.offset, cache.offset + length)[:, None]
        distances = mx.clip(mx.arange(cache.offset + length) - rows, -limit, limit)
        buckets = mx.array(relative.distance_buckets())[distances + limit]  # [L, S]
        return table(buckets).transpose(2, 0, 1)[None]

    def self_attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        spec: AttentionSpec,
        cache: Padding | BiasedCache,
        bias: mx.array | None,
    ) -> mx.array:
        q, k, v = (split_heads(part, spec.heads) for part in (q, k, v))
        return _join_heads(cache.attend(q, k, v, spec, bias))

    def cross_attention(
        self, q: mx.array, layers: Sequence[nn.Module], spec: AttentionSpec, cache: CrossCache
    ) -> mx.array:
        def make(memory: mx.array) -> list[mx.array]:
            return [split_heads(self.linear(layer, memory), spec.heads) for layer in layers]

        return _join_heads(cache.attend(split_heads(q, spec.heads), spec, make))

    def shift(self, layer: nn.Module, x: mx.array) -> mx.array:
        return x + layer.bias


def _join_heads(x: mx.array) -> mx.array:
    """[B, heads, L, D] → [B, L, heads·D]."""
    return x.transpose(0, 2, 1, 3).flatten(-2)
