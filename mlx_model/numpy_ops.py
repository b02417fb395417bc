"""The operations in plain numpy, in any float precision: the reference that tests compare with."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..kernels.reference import attention_reference
from ..kernels.spec import AttentionSpec
from .activations import CLAMPED_GATE, GATE_LIMIT, GELU_CUBE, GELU_QUICK, GELU_TANH
from .config import Experts
from .dense import dense_weight
from .norms import PlusOneRMSNorm
from .numpy_experts import mix, route
from .positions import Alibi, Position, RopeConfig, rope_tables


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
    """Computes in `dtype` throughout; logits of the last `last` rows, 0 means all.

    `length`: as in `MlxOps`.
    """

    def __init__(self, dtype: type = np.float64, last: int = 0, length: int | None = None):
        self._dtype = dtype
        self._last = last
        self._length = length
        self._weights: dict[int, np.ndarray] = {}

    def embed(self, table: nn.Module, ids: np.ndarray) -> np.ndarray:
        return self._weight(table)[ids]

    def add_positions(
        self, table: nn.Module, offset: int, x: np.ndarray, cache: NumpyCache
    ) -> np.ndarray:
        first = offset + cache.length
        return x + self._weight(table)[first : first + x.shape[1]]

    def linear(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        y = x @ self._weight(layer).T
        return y + _to_numpy(layer.bias, self._dtype) if "bias" in layer else y

    def project(self, layers: Sequence[nn.Module], x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.linear(layer, x) for layer in layers)

    def norm(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        weight = _to_numpy(layer.weight, self._dtype)
        if isinstance(layer, nn.LayerNorm):
            x = x - np.mean(x, axis=-1, keepdims=True)
        normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + layer.eps)
        if isinstance(layer, PlusOneRMSNorm):
            weight = 1.0 + weight
        y = normed * weight
        return y + _to_numpy(layer.bias, self._dtype) if "bias" in layer else y

    def head_norm(self, layer: nn.Module, x: np.ndarray, heads: int) -> np.ndarray:
        return self.norm(layer, x.reshape(*x.shape[:2], heads, -1)).reshape(x.shape)

    def attention(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        spec: AttentionSpec,
        position: Position,
        cache: NumpyCache,
        sinks: mx.array | None = None,
    ) -> np.ndarray:
        q, k = split_heads(q, spec.heads), split_heads(k, spec.kv_heads)
        arrays = {}
        if isinstance(position, RopeConfig):
            total = self._length or cache.length + q.shape[2]
            q, k = (_rotate(x, position.at(total), cache.length) for x in (q, k))
        elif isinstance(position, Alibi):
            arrays["slopes"] = np.array(position.slopes, self._dtype)
        if sinks is not None:
            arrays["sinks"] = _to_numpy(sinks, self._dtype)
        keys, values = cache.update(k, split_heads(v, spec.kv_heads))
        out = attention_reference(q, keys, values, spec, **arrays)
        return out.transpose(0, 2, 1, 3).reshape(*out.shape[:1], out.shape[2], -1)

    def experts(self, layer: nn.Module, spec: Experts, x: np.ndarray) -> np.ndarray:
        tokens = x.reshape(-1, x.shape[-1])  # [T, E]
        correction = _to_numpy(layer.correction, self._dtype) if spec.correction else None
        chosen, weights = route(self.linear(layer.gate, tokens), spec, correction)
        mlp = partial(self._expert, layer.experts)
        return mix(tokens, chosen, weights, mlp).reshape(x.shape)

    def _expert(self, experts: nn.Module, number: int, x: np.ndarray) -> np.ndarray:
        """x [n, E] through one expert's MLP."""

        def linear(layer: nn.Module, x: np.ndarray) -> np.ndarray:
            y = x @ self._weight(layer)[number].T
            return y + _to_numpy(layer.bias[number], self._dtype) if "bias" in layer else y

        gate, up = (linear(layer, x) for layer in (experts.gate_proj, experts.up_proj))
        return linear(experts.down_proj, self.gated(experts.activation, gate, up))

    def gated(self, activation: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if activation == CLAMPED_GATE:
            gate, up = np.minimum(gate, GATE_LIMIT), np.clip(up, -GATE_LIMIT, GATE_LIMIT) + 1.0
            activation = "gelu_quick"
        return self.activate(activation, gate) * up

    def activate(self, activation: str, x: np.ndarray) -> np.ndarray:
        return _ACTIVATIONS[activation](x)

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def scale(self, x: np.ndarray, factor: float) -> np.ndarray:
        return x * factor

    def multiply(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    def clip(self, x: np.ndarray, limit: float) -> np.ndarray:
        return np.clip(x, -limit, limit)

    def select_rows(self, x: np.ndarray) -> np.ndarray:
        return x[:, -self._last :, :] if self._last else x

    def unembed(self, layer: nn.Module, x: np.ndarray) -> np.ndarray:
        return self.linear(layer, x)

    def softcap(self, x: np.ndarray, cap: float) -> np.ndarray:
        return cap * np.tanh(x / cap)

    def _weight(self, layer: nn.Module) -> np.ndarray:
        """The layer's weight [out, in] in the reference precision, dequantized once."""
        if id(layer) not in self._weights:
            self._weights[id(layer)] = _to_numpy(dense_weight(layer), self._dtype)
        return self._weights[id(layer)]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return x * (1.0 + erf(x / math.sqrt(2.0))) / 2.0


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": lambda x: x * (1.0 + np.tanh(GELU_TANH * (x + GELU_CUBE * x**3))) / 2.0,
    "gelu_quick": lambda x: x * _sigmoid(GELU_QUICK * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.square(np.maximum(x, 0.0)),
    "sigmoid": _sigmoid,
}


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, L, heads·D] → [B, heads, L, D]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _rotate(x: np.ndarray, rope: RopeConfig, offset: int) -> np.ndarray:
    """Turn the pairs of x [B, heads, L, D] by their positions' angles."""
    cos, sin = (table[offset:] for table in rope_tables(rope, offset + x.shape[2]))  # [L, dims/2]
    return turn(x, cos, sin, rope.interleaved)


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Turn the pairs of x's leading dimensions; x [..., L, D], cos and sin [..., L, dims/2]."""
    half, turned = cos.shape[-1], x.copy()
    pairs = (slice(0, half), slice(half, 2 * half))
    if interleaved:
        pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    first, second = (x[..., part] for part in pairs)
    turned[..., pairs[0]] = first * cos - second * sin
    turned[..., pairs[1]] = second * cos + first * sin
    return turned


def _to_numpy(array: mx.array, dtype: type) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(dtype)
