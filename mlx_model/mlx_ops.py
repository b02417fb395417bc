"""The operations computed with MLX: what the MLX engine runs."""

from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx
import mlx.nn as nn

from ..kernels.spec import AttentionSpec
from .caches.full import KVCache
from .caches.ragged import RaggedCache, RaggedRow
from .positions import RopeConfig, inverse_frequencies


class MlxOps:
    """`last`: how many of the last rows get logits; 0 means all."""

    def __init__(self, last: int = 1):
        self._last = last

    def embed(self, table: nn.Module, ids: mx.array) -> mx.array:
        return table(ids)

    def linear(self, layer: nn.Module, x: mx.array) -> mx.array:
        return layer(x)

    def project(self, layers: Sequence[nn.Module], x: mx.array) -> tuple[mx.array, ...]:
        return tuple(layer(x) for layer in layers)

    def rms_norm(self, layer: nn.RMSNorm, x: mx.array) -> mx.array:
        return layer(x)

    def attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        spec: AttentionSpec,
        rope: RopeConfig,
        cache: KVCache | RaggedCache | RaggedRow,
    ) -> mx.array:
        q = _rotate(_split_heads(q, spec.heads), rope, cache.offset)  # [B, H, L, D]
        k = _rotate(_split_heads(k, spec.kv_heads), rope, cache.offset)  # [B, K, L, D]
        out = cache.attend(q, k, _split_heads(v, spec.kv_heads), spec)  # [B, H, L, D]
        return out.transpose(0, 2, 1, 3).flatten(-2)  # [B, L, H·D]

    def gated(self, activation: str, gate: mx.array, up: mx.array) -> mx.array:
        return _gate(activation, mx.default_device().type == mx.gpu)(gate, up)

    def add(self, x: mx.array, y: mx.array) -> mx.array:
        return x + y

    def select_rows(self, x: mx.array) -> mx.array:
        return x[:, -self._last :, :] if self._last else x

    def unembed(self, layer: nn.Module, x: mx.array) -> mx.array:
        logits = layer.as_linear(x) if hasattr(layer, "as_linear") else layer(x)
        return logits.astype(mx.float32)


def _swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


_GATES = {"silu": _swiglu}


@cache
def _gate(activation: str, fused: bool) -> Callable[[mx.array, mx.array], mx.array]:
    """The activation, as one kernel on a GPU; on a CPU fusing it only costs a compiler run."""
    return mx.compile(_GATES[activation], shapeless=True) if fused else _GATES[activation]


def _split_heads(x: mx.array, heads: int) -> mx.array:
    """[B, L, heads·D] → [B, heads, L, D]."""
    return mx.unflatten(x, -1, (heads, -1)).transpose(0, 2, 1, 3)


def _rotate(x: mx.array, rope: RopeConfig, offset: int | mx.array) -> mx.array:
    """Turn x [B, heads, L, D] by the angles of positions offset…offset+L−1; offset may be [B]."""
    return mx.fast.rope(
        x,
        rope.dims,
        traditional=False,
        base=None,
        scale=1.0,
        offset=offset,
        freqs=_periods(rope),
    )


@cache
def _periods(rope: RopeConfig) -> mx.array:
    """Positions per radian of each pair: what `mx.fast.rope` calls freqs."""
    return mx.array(1.0 / inverse_frequencies(rope))
