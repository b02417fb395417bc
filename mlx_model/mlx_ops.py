"""The operations computed with MLX: what the MLX engine runs."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import mlx.core as mx
import mlx.nn as nn

from ..kernels.spec import AttentionSpec
from .activations import CLAMPED_GATE, GATE_LIMIT, GELU_CUBE, GELU_QUICK, GELU_TANH
from .caches.full import KVCache
from .caches.ragged import RaggedCache, RaggedRow, RaggedRows
from .config import Experts
from .mlx_experts import mix, route
from .norms import PlusOneRMSNorm
from .positions import Alibi, Position, RopeConfig, inverse_frequencies

LayerCache = KVCache | RaggedCache | RaggedRows | RaggedRow


class MlxOps:
    """`last`: how many of the last rows get logits; 0 means all.

    `length`: the tokens of the whole sequence, for models that rotate longer sequences otherwise;
    None takes those that are in the cache after this call.
    """

    def __init__(self, last: int = 1, length: int | None = None):
        self._last = last
        self._length = length

    def embed(self, table: nn.Module, ids: mx.array) -> mx.array:
        return table(ids)

    def add_positions(
        self, table: nn.Module, offset: int, x: mx.array, cache: LayerCache
    ) -> mx.array:
        first = mx.array(cache.offset)[..., None]  # [1], or [B, 1] of a ragged batch
        return x + table(offset + first + mx.arange(x.shape[1]))

    def linear(self, layer: nn.Module, x: mx.array) -> mx.array:
        return layer(x)

    def project(self, layers: Sequence[nn.Module], x: mx.array) -> tuple[mx.array, ...]:
        return tuple(layer(x) for layer in layers)

    def norm(self, layer: nn.Module, x: mx.array) -> mx.array:
        if isinstance(layer, PlusOneRMSNorm):
            factor = layer.weight.astype(mx.float32) + 1.0
            return mx.fast.rms_norm(x.astype(mx.float32), factor, layer.eps).astype(x.dtype)
        return layer(x)

    def head_norm(self, layer: nn.Module, x: mx.array, heads: int) -> mx.array:
        split = mx.unflatten(x, -1, (heads, -1))  # [B, L, heads, D]
        if layer.weight.ndim == 1:
            return self.norm(layer, split).flatten(-2)
        wide = split.astype(mx.float32)
        if isinstance(layer, nn.LayerNorm):
            normed = mx.fast.layer_norm(wide, None, None, layer.eps)
        else:
            normed = mx.fast.rms_norm(wide, None, layer.eps)
        return (normed * layer.weight).astype(x.dtype).flatten(-2)

    def attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        spec: AttentionSpec,
        position: Position,
        cache: LayerCache,
        sinks: mx.array | None = None,
    ) -> mx.array:
        q, k = split_heads(q, spec.heads), split_heads(k, spec.kv_heads)  # [B, H or K, L, D]
        arrays = {}
        if isinstance(position, RopeConfig):
            offset = cache.offset
            rope = position.at(self._total(position, offset, q.shape[2]))
            q, k = _rotate(q, rope, offset), _rotate(k, rope, offset)
        elif isinstance(position, Alibi):
            arrays["slopes"] = _slopes(position)
        if sinks is not None:
            arrays["sinks"] = sinks.astype(mx.float32)
        v = split_heads(v, spec.kv_heads)
        out = cache.attend(q, k, v, spec, **arrays)  # [B, H, L, D]
        return out.transpose(0, 2, 1, 3).flatten(-2)  # [B, L, H·D]

    def experts(self, layer: nn.Module, spec: Experts, x: mx.array) -> mx.array:
        tokens = x.flatten(0, -2)  # [T, E]
        logits = self.linear(layer.gate, tokens.astype(mx.float32))
        chosen, weights = route(logits, spec, layer.get("correction"))
        return mix(layer.experts, tokens, chosen, weights, self.gated).reshape(x.shape)

    def gated(self, activation: str, gate: mx.array, up: mx.array) -> mx.array:
        return _gate(activation, mx.default_device().type == mx.gpu)(gate, up)

    def activate(self, activation: str, x: mx.array) -> mx.array:
        return _ACTIVATIONS[activation](x)

    def add(self, x: mx.array, y: mx.array) -> mx.array:
        return x + y

    def scale(self, x: mx.array, factor: float) -> mx.array:
        return x * factor

    def multiply(self, x: mx.array, y: mx.array) -> mx.array:
        return x * y

    def clip(self, x: mx.array, limit: float) -> mx.array:
        return mx.clip(x, -limit, limit)

    def select_rows(self, x: mx.array) -> mx.array:
        return x[:, -self._last :, :] if self._last else x

    def unembed(self, layer: nn.Module, x: mx.array) -> mx.array:
        logits = layer.as_linear(x) if hasattr(layer, "as_linear") else layer(x)
        return logits.astype(mx.float32)

    def softcap(self, x: mx.array, cap: float) -> mx.array:
        return cap * mx.tanh(x / cap)

    def _total(self, rope: RopeConfig, offset: int | mx.array, added: int) -> int:
        """The length that a rotation is chosen by."""
        if rope.switch is None or self._length is not None:
            return self._length or 0
        if isinstance(offset, mx.array):
            raise ValueError("the rows of a ragged batch cannot turn by their own lengths")
        return offset + added


# Not those of mlx.nn, which are compiled: on a CPU that costs a compiler run.
_ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "silu": lambda x: x * mx.sigmoid(x),
    "gelu": lambda x: x * (1.0 + mx.erf(x / math.sqrt(2.0))) / 2.0,
    "gelu_tanh": lambda x: x * (1.0 + mx.tanh(GELU_TANH * (x + GELU_CUBE * x * x * x))) / 2.0,
    "gelu_quick": lambda x: x * mx.sigmoid(GELU_QUICK * x),
    "relu": lambda x: mx.maximum(x, 0.0),
    "relu2": lambda x: mx.square(mx.maximum(x, 0.0)),
    "sigmoid": mx.sigmoid,
}


@cache
def _gate(activation: str, fused: bool) -> Callable[[mx.array, mx.array], mx.array]:
    """activation(gate)·up, as one kernel on a GPU; on a CPU fusing only costs a compiler run."""
    gated = _clamped_gate if activation == CLAMPED_GATE else partial(_activated, activation)
    return mx.compile(gated, shapeless=True) if fused else gated


def _activated(activation: str, gate: mx.array, up: mx.array) -> mx.array:
    return _ACTIVATIONS[activation](gate) * up


def _clamped_gate(gate: mx.array, up: mx.array) -> mx.array:
    gate, up = mx.minimum(gate, GATE_LIMIT), mx.clip(up, -GATE_LIMIT, GATE_LIMIT)
    return _ACTIVATIONS["gelu_quick"](gate) * (up + 1.0)


def split_heads(x: mx.array, heads: int) -> mx.array:
    """[B, L, heads·D] → [B, heads, L, D]."""
    return mx.unflatten(x, -1, (heads, -1)).transpose(0, 2, 1, 3)


def _rotate(x: mx.array, rope: RopeConfig, offset: int | mx.array) -> mx.array:
    """Turn x [B, heads, L, D] by the angles of positions offset…offset+L−1; offset may be [B]."""
    turned = mx.fast.rope(
        x,
        rope.dims,
        traditional=rope.interleaved,
        base=None,
        scale=1.0,
        offset=offset,
        freqs=_periods(rope),
    )
    if rope.magnitude == 1.0:
        return turned
    head, rest = turned[..., : rope.dims], turned[..., rope.dims :]
    return mx.concatenate([head * rope.magnitude, rest], axis=-1)


@cache
def _periods(rope: RopeConfig) -> mx.array:
    """Positions per radian of each pair: what `mx.fast.rope` calls freqs."""
    return mx.array(1.0 / inverse_frequencies(rope))


@cache
def _slopes(alibi: Alibi) -> mx.array:
    return mx.array(alibi.slopes, mx.float32)
