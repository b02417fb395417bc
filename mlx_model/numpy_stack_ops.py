"""The operations of stacks in plain numpy: the reference that tests compare with."""

from collections.abc import Sequence

import mlx.nn as nn
import numpy as np

from ..kernels.reference import attention_reference
from ..kernels.spec import AttentionSpec
from .numpy_ops import NumpyCache, NumpyOps, split_heads
from .relative_bias import RelativeBias


class NumpyPadding:
    """Stands for a cache where nothing is kept: `hidden` is −inf for padding [B, 1, 1, S]."""

    length = 0

    def __init__(self, mask: np.ndarray):
        self.hidden = np.where(mask[:, None, None] > 0, 0.0, -np.inf)

    def update(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return keys, values


class NumpyCross:
    """An encoder's output `memory` [B, S, E] and which of it is padding."""

    def __init__(self, memory: np.ndarray, mask: np.ndarray):
        self.memory, self.hidden = memory, NumpyPadding(mask).hidden


class NumpyStackOps(NumpyOps):
    """Fulfils `ops.StackOps`."""

    def relative_bias(
        self,
        table: nn.Module,
        relative: RelativeBias,
        x: np.ndarray,
        cache: NumpyCache | NumpyPadding,
    ) -> np.ndarray:
        length, limit = x.shape[1], relative.max_distance
        rows = np.arange(cache.length, cache.length + length)[:, None]
        distances = np.clip(np.arange(cache.length + length) - rows, -limit, limit)
        buckets = relative.distance_buckets()[distances + limit]  # [L, S]
        return self._weight(table)[buckets].transpose(2, 0, 1)[None]

    def self_attention(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        spec: AttentionSpec,
        cache: NumpyCache | NumpyPadding,
        bias: np.ndarray | None,
    ) -> np.ndarray:
        q, k, v = (split_heads(part, spec.heads) for part in (q, k, v))
        if isinstance(cache, NumpyPadding):
            bias = cache.hidden if bias is None else bias + cache.hidden
        keys, values = cache.update(k, v)
        return _join_heads(attention_reference(q, keys, values, spec, bias=bias))

    def cross_attention(
        self, q: np.ndarray, layers: Sequence[nn.Module], spec: AttentionSpec, cache: NumpyCross
    ) -> np.ndarray:
        q = split_heads(q, spec.heads)
        keys, values = (split_heads(self.linear(x, cache.memory), spec.heads) for x in layers)
        return _join_heads(attention_reference(q, keys, values, spec, bias=cache.hidden))

    def shift(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        return x + np.array(layer.bias).astype(x.dtype)


def _join_heads(x: np.ndarray) -> np.ndarray:
    """[B, heads, L, D] → [B, L, heads·D]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
