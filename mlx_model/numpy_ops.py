"""The operations in plain numpy, in any float precision: the reference that tests compare with."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..kernels.reference import attention_reference
from ..kernels.spec import AttentionSpec
from .positions import RopeConfig, rope_tables


class NumpyCache:
    """Keys and values of one layer, each [B, K, S, D]."""

    def __init__(self) -> None:
        self.keys: np.ndarray | None = None
        self.values: np.ndarray | None = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.keys is not None:
            keys = np.concatenate([self.keys, keys], axis=2)
            values = np.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        return keys, values


class NumpyOps:
    """Computes in `dtype` throughout; logits of the last `last` rows, 0 means all."""

    def __init__(self, dtype: type = np.float64, last: int = 0):
        self._dtype = dtype
        self._last = last
        self._weights: dict[int, np.ndarray] = {}

    def embed(self, table: nn.Module, ids: np.ndarray) -> np.ndarray:
        return self._weight(table)[ids]

    def linear(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        y = x @ self._weight(layer).T
        return y + _to_numpy(layer.bias, self._dtype) if "bias" in layer else y

    def project(self, layers: Sequence[nn.Module], x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.linear(layer, x) for layer in layers)

    def rms_norm(self, layer: nn.RMSNorm, x: np.ndarray) -> np.ndarray:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + layer.eps) * _to_numpy(layer.weight, self._dtype)

    def attention(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        spec: AttentionSpec,
        rope: RopeConfig,
        cache: NumpyCache,
    ) -> np.ndarray:
        q = _rotate(_split_heads(q, spec.heads), rope, cache.length)
        k = _rotate(_split_heads(k, spec.kv_heads), rope, cache.length)
        keys, values = cache.update(k, _split_heads(v, spec.kv_heads))
        out = attention_reference(q, keys, values, spec)
        return out.transpose(0, 2, 1, 3).reshape(*out.shape[:1], out.shape[2], -1)

    def gated(self, activation: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if activation != "silu":
            raise NotImplementedError(activation)
        return gate / (1.0 + np.exp(-gate)) * up

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def select_rows(self, x: np.ndarray) -> np.ndarray:
        return x[:, -self._last :, :] if self._last else x

    def unembed(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        return self.linear(layer, x)

    def _weight(self, layer: nn.Module) -> np.ndarray:
        """The layer's weight [out, in] in the reference precision, dequantized once."""
        if id(layer) not in self._weights:
            self._weights[id(layer)] = _to_numpy(dense_weight(layer), self._dtype)
        return self._weights[id(layer)]


def dense_weight(layer: nn.Module, rows: slice = slice(None)) -> mx.array:
    """The weight [out, in] of a linear layer or embedding, or some rows; dequantized if need be."""
    if "scales" not in layer:
        return layer.weight[rows]
    return mx.dequantize(
        layer.weight[rows],
        layer.scales[rows].astype(mx.float32),
        layer.biases[rows].astype(mx.float32),
        group_size=layer.group_size,
        bits=layer.bits,
    )


def _split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, L, heads·D] → [B, heads, L, D]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _rotate(x: np.ndarray, rope: RopeConfig, offset: int) -> np.ndarray:
    """Turn the pairs (x_i, x_{i+dims/2}) of x [B, heads, L, D] by their positions' angles."""
    cos, sin = (table[offset:] for table in rope_tables(rope, offset + x.shape[2]))  # [L, dims/2]
    half = rope.dims // 2
    first, second, rest = x[..., :half], x[..., half : rope.dims], x[..., rope.dims :]
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return np.concatenate(turned, axis=-1).astype(x.dtype)


def _to_numpy(array: mx.array, dtype: type) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(dtype)
