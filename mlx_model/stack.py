"""The forward of a stack of blocks, written once; `ops` says who computes it (see `ops.py`)."""

from collections.abc import Callable, Sequence

import mlx.nn as nn

from .decoder import MLP
from .encoder_config import StackConfig
from .norms import make_norm
from .ops import Cache, StackOps, Value


class StackAttention(nn.Module):
    """Multi-head attention (arXiv:1706.03762) over the tokens or over an encoder's output."""

    def __init__(self, config: StackConfig, crossing: bool = False):
        super().__init__()
        inner = config.heads * config.head_dim
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(config.hidden_size, inner, bias=config.bias))
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=config.bias)
        self._spec = config.attention(causal=config.causal and not crossing)

    def __call__(self, ops: StackOps, x: Value, cache: Cache, bias: Value | None) -> Value:
        """x [B, L, E] attends to itself and what the cache holds; bias [1, H, L, S]."""
        q, k, v = ops.project((self.q_proj, self.k_proj, self.v_proj), x)
        mixed = ops.self_attention(q, k, v, self._spec, cache, bias)
        return ops.linear(self.o_proj, mixed)

    def cross(self, ops: StackOps, x: Value, cache: Cache) -> Value:
        """x [B, L, E] attends to the encoder's output that the cache stands for."""
        q = ops.linear(self.q_proj, x)
        mixed = ops.cross_attention(q, (self.k_proj, self.v_proj), self._spec, cache)
        return ops.linear(self.o_proj, mixed)


class StackBlock(nn.Module):
    """Attention, attention to an encoder's output where there is one, MLP: each a residual."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.self_attn = StackAttention(config)
        self.self_attn_norm = make_norm(config.norm, config.hidden_size)
        if config.crossing:
            self.cross_attn = StackAttention(config, crossing=True)
            self.cross_attn_norm = make_norm(config.norm, config.hidden_size)
        self.mlp = MLP(config)
        self.mlp_norm = make_norm(config.norm, config.hidden_size)
        self._config = config

    def __call__(
        self, ops: StackOps, x: Value, cache: Cache, cross: Cache | None, bias: Value | None
    ) -> Value:
        x = self._add(ops, self.self_attn_norm, x, lambda y: self.self_attn(ops, y, cache, bias))
        if self._config.crossing:
            x = self._add(
                ops, self.cross_attn_norm, x, lambda y: self.cross_attn.cross(ops, y, cross)
            )
        return self._add(ops, self.mlp_norm, x, lambda y: self.mlp(ops, y))

    def _add(
        self, ops: StackOps, norm: nn.Module, x: Value, branch: Callable[[Value], Value]
    ) -> Value:
        if self._config.placement == "post":
            return ops.norm(norm, ops.add(x, branch(x)))
        return ops.add(x, branch(ops.norm(norm, x)))


class Stack(nn.Module):
    """Positions, blocks and, where blocks normalise their inputs, a final norm."""

    def __init__(self, config: StackConfig):
        super().__init__()
        if config.positions:
            self.embed_positions = nn.Embedding(config.positions, config.hidden_size)
        if config.embedding_norm:
            self.embedding_norm = make_norm(config.norm, config.hidden_size)
        if config.relative:
            self.relative_bias = nn.Embedding(config.relative.buckets, config.heads)
        self.layers = [StackBlock(config) for _ in range(config.layers)]
        if config.placement == "pre":
            self.norm = make_norm(config.norm, config.hidden_size)
        self._config = config

    def __call__(
        self,
        ops: StackOps,
        x: Value,
        caches: Sequence[Cache],
        crosses: Sequence[Cache] | None = None,
    ) -> Value:
        """Embeddings x [B, L, E] → what the stack makes of them [B, L, E].

        One cache a layer of the stack's own keys, and one of the encoder's where it is read.
        """
        config = self._config
        if config.embedding_multiplier != 1.0:
            x = ops.scale(x, config.embedding_multiplier)
        if config.positions:
            x = ops.add_positions(self.embed_positions, config.position_offset, x, caches[0])
        if config.embedding_norm:
            x = ops.norm(self.embedding_norm, x)
        bias = None
        if config.relative:
            bias = ops.relative_bias(self.relative_bias, config.relative, x, caches[0])
        for index, (block, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = block(ops, x, cache, crosses[index] if crosses else None, bias)
        return ops.norm(self.norm, x) if config.placement == "pre" else x
