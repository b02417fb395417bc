"""The decoder's forward, written once; `ops` says who computes it (see `ops.py`).

Parameter names are those of Hugging Face's Llama checkpoints, and Gemma 2's where Llama has
nothing of the kind; families rename the others.
"""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from .config import HeadNorm, ModelConfig
from .experts import SparseMLP
from .norms import make_norm
from .ops import Cache, Ops, Value


class Attention(nn.Module):
    """Multi-head attention with K shared key/value heads (GQA, arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        heads_dim = config.heads * config.head_dim
        kv_dim = config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, heads_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_dim, bias=bias)
        self.o_proj = nn.Linear(heads_dim, config.hidden_size, bias=config.output_bias)
        if config.head_norm:
            self.q_norm = _head_norm(config.head_norm, config.heads, config.head_dim)
            self.k_norm = _head_norm(config.head_norm, config.kv_heads, config.head_dim)
        if config.sinks:
            self.sinks = mx.zeros((config.heads,))
        self._config = config
        self._spec = config.attention(layer)
        self._position = config.blocks[layer].position

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        # q [B, L, H·D]; k, v [B, L, K·D]
        q, k, v = ops.project((self.q_proj, self.k_proj, self.v_proj), x)
        if self._config.head_norm:
            q, k = self._normalise(ops, q, k)
        if (limit := self._config.clip_qkv) is not None:
            q, k, v = (ops.clip(part, limit) for part in (q, k, v))
        sinks = self.sinks if self._config.sinks else None
        mixed = ops.attention(q, k, v, self._spec, self._position, cache, sinks)  # [B, L, H·D]
        return ops.linear(self.o_proj, mixed)  # [B, L, E]

    def _normalise(self, ops: Ops, q: Value, k: Value) -> tuple[Value, Value]:
        if self._config.head_norm.over == "width":
            return ops.norm(self.q_norm, q), ops.norm(self.k_norm, k)
        q = ops.head_norm(self.q_norm, q, self._spec.heads)
        return q, ops.head_norm(self.k_norm, k, self._spec.kv_heads)


def _head_norm(head_norm: HeadNorm, heads: int, head_dim: int) -> nn.Module:
    if head_norm.over == "width":
        return make_norm(head_norm.norm, heads * head_dim)
    shape = (heads, head_dim) if head_norm.over == "each" else None
    return make_norm(head_norm.norm, head_dim, shape)


class MLP(nn.Module):
    """The feed-forward block: down(activation(gate(x)) · up(x)), or down(activation(up(x)))."""

    def __init__(self, config: ModelConfig, feed_forward: int | None = None):
        super().__init__()
        width, bias = feed_forward or config.feed_forward, config.mlp_bias
        if config.gated:
            self.gate_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=bias)
        self._gated = config.gated
        self._activation = config.activation

    def __call__(self, ops: Ops, x: Value) -> Value:
        if self._gated:
            gate, up = ops.project((self.gate_proj, self.up_proj), x)  # [B, L, F]
            hidden = ops.gated(self._activation, gate, up)
        else:
            hidden = ops.activate(self._activation, ops.linear(self.up_proj, x))
        return ops.linear(self.down_proj, hidden)  # [B, L, E]


class Block(nn.Module):
    """A pre-norm residual block: x + attention(norm x), then the same with the MLP."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        experts = config.blocks[layer].experts
        self.self_attn = Attention(config, layer)
        self.mlp = SparseMLP(config, experts, MLP) if experts else MLP(config)
        for name in self.norms:
            setattr(self, name, make_norm(config.norm, config.hidden_size))
        self._multiplier = config.residual_multiplier

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        mixed = self.self_attn(ops, ops.norm(self.input_layernorm, x), cache)
        x = self.add(ops, x, mixed)
        return self.add(ops, x, self.mlp(ops, ops.norm(self.post_attention_layernorm, x)))

    def add(self, ops: Ops, x: Value, branch: Value) -> Value:
        """The residual and what a branch adds to it."""
        if self._multiplier != 1.0:
            branch = ops.scale(branch, self._multiplier)
        return ops.add(x, branch)


class OutputNormBlock(Block):
    """The branches' outputs are normalised, not their inputs (OLMo 2, arXiv:2501.00656)."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        mixed = self.self_attn(ops, x, cache)
        x = self.add(ops, x, ops.norm(self.post_attention_layernorm, mixed))
        return self.add(ops, x, ops.norm(self.post_feedforward_layernorm, self.mlp(ops, x)))


class SandwichBlock(Block):
    """Each branch is normalised before and after (Gemma 2, arXiv:2408.00118)."""

    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        mixed = self.self_attn(ops, ops.norm(self.input_layernorm, x), cache)
        x = self.add(ops, x, ops.norm(self.post_attention_layernorm, mixed))
        hidden = self.mlp(ops, ops.norm(self.pre_feedforward_layernorm, x))
        return self.add(ops, x, ops.norm(self.post_feedforward_layernorm, hidden))


class ParallelBlock(Block):
    """Attention and MLP run side by side on the same normalised input (GPT-J)."""

    norms = ("input_layernorm",)

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        normed = ops.norm(self.input_layernorm, x)
        mixed, hidden = self.self_attn(ops, normed, cache), self.mlp(ops, normed)
        return self.add(ops, self.add(ops, x, mixed), hidden)


class ParallelTwoNormBlock(Block):
    """Attention and MLP run side by side, each with a norm of its own (GPT-NeoX)."""

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        mixed = self.self_attn(ops, ops.norm(self.input_layernorm, x), cache)
        hidden = self.mlp(ops, ops.norm(self.post_attention_layernorm, x))
        return self.add(ops, self.add(ops, x, mixed), hidden)


BLOCKS: dict[str, type[Block]] = {
    "pre": Block,
    "output": OutputNormBlock,
    "sandwich": SandwichBlock,
    "parallel": ParallelBlock,
    "parallel_two": ParallelTwoNormBlock,
}


class Trunk(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.learned_positions:
            self.embed_positions = nn.Embedding(config.learned_positions, config.hidden_size)
        if config.embedding_norm:
            self.embedding_norm = make_norm(config.norm, config.hidden_size)
        block = BLOCKS[config.placement]
        self.layers = [block(config, layer) for layer in range(config.layers)]
        self.norm = make_norm(config.norm, config.hidden_size)
        self._config = config

    def __call__(self, ops: Ops, ids: Value, caches: Sequence[Cache]) -> Value:
        x = self._embed(ops, ids, caches)  # [B, L, E]
        for block, cache in zip(self.layers, caches, strict=True):
            x = block(ops, x, cache)
        return ops.norm(self.norm, ops.select_rows(x))

    def _embed(self, ops: Ops, ids: Value, caches: Sequence[Cache]) -> Value:
        config = self._config
        x = ops.embed(self.embed_tokens, ids)
        if config.embedding_multiplier != 1.0:
            x = ops.scale(x, config.embedding_multiplier)
        if config.learned_positions:
            x = ops.add_positions(self.embed_positions, config.position_offset, x, caches[0])
        return ops.norm(self.embedding_norm, x) if config.embedding_norm else x


class Decoder(nn.Module):
    """Token ids in, next-token logits out."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.model = Trunk(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self._config = config

    @property
    def config(self) -> ModelConfig:
        """The description that this decoder was built from."""
        return self._config

    def __call__(self, ops: Ops, ids: Value, caches: Sequence[Cache]) -> Value:
        """ids [B, L] and one cache a layer → float32 logits [B, rows, V] (see select_rows)."""
        config = self._config
        x = self.model(ops, ids, caches)
        head = self.model.embed_tokens if config.tie_embeddings else self.lm_head
        logits = ops.unembed(head, x)
        if config.logit_scale != 1.0:
            logits = ops.scale(logits, config.logit_scale)
        return logits if config.logit_softcap is None else ops.softcap(logits, config.logit_softcap)
