"""The decoder's forward, written once; `ops` says who computes it (see `ops.py`).

Parameter names are those of Hugging Face's Llama checkpoints; families rename the others.
"""

from collections.abc import Sequence

import mlx.nn as nn

from .config import ModelConfig
from .ops import Cache, Ops, Value


class Attention(nn.Module):
    """Multi-head attention with K shared key/value heads (GQA, arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        heads_dim = config.heads * config.head_dim
        kv_dim = config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, heads_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_dim, bias=bias)
        self.o_proj = nn.Linear(heads_dim, config.hidden_size, bias=config.output_bias)
        self._spec = config.attention
        self._rope = config.rope

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        # q [B, L, H·D]; k, v [B, L, K·D]
        q, k, v = ops.project((self.q_proj, self.k_proj, self.v_proj), x)
        mixed = ops.attention(q, k, v, self._spec, self._rope, cache)  # [B, L, H·D]
        return ops.linear(self.o_proj, mixed)  # [B, L, E]


class MLP(nn.Module):
    """The gated feed-forward block: down(activation(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        bias = config.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.feed_forward, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.feed_forward, bias=bias)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden_size, bias=bias)
        self._activation = config.activation

    def __call__(self, ops: Ops, x: Value) -> Value:
        gate, up = ops.project((self.gate_proj, self.up_proj), x)  # [B, L, F]
        return ops.linear(self.down_proj, ops.gated(self._activation, gate, up))  # [B, L, E]


class Block(nn.Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)

    def __call__(self, ops: Ops, x: Value, cache: Cache) -> Value:
        x = ops.add(x, self.self_attn(ops, ops.rms_norm(self.input_layernorm, x), cache))
        return ops.add(x, self.mlp(ops, ops.rms_norm(self.post_attention_layernorm, x)))


class Trunk(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)

    def __call__(self, ops: Ops, ids: Value, caches: Sequence[Cache]) -> Value:
        x = ops.embed(self.embed_tokens, ids)  # [B, L, E]
        for block, cache in zip(self.layers, caches, strict=True):
            x = block(ops, x, cache)
        return ops.rms_norm(self.norm, ops.select_rows(x))


class Decoder(nn.Module):
    """Token ids in, next-token logits out."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.model = Trunk(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._config = config

    @property
    def config(self) -> ModelConfig:
        """The description that this decoder was built from."""
        return self._config

    def __call__(self, ops: Ops, ids: Value, caches: Sequence[Cache]) -> Value:
        """ids [B, L] and one cache a layer → float32 logits [B, rows, V] (see select_rows)."""
        x = self.model(ops, ids, caches)
        head = self.model.embed_tokens if self._config.tie_embeddings else self.lm_head
        return ops.unembed(head, x)
