"""An encoder: token ids in, a vector of each token out (BERT, arXiv:1810.04805)."""

from collections.abc import Sequence

import mlx.nn as nn

from .encoder_config import EncoderConfig
from .ops import Cache, StackOps, Value
from .stack import Stack


class Encoder(nn.Module):
    """Embeddings of tokens and, where there are any, of token types; then a stack of blocks."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        hidden = config.stack.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        if config.token_types:
            self.embed_token_types = nn.Embedding(config.token_types, hidden)
        self.stack = Stack(config.stack)
        self._config = config

    @property
    def config(self) -> EncoderConfig:
        """The description that this encoder was built from."""
        return self._config

    def __call__(
        self, ops: StackOps, ids: Value, token_types: Value | None, caches: Sequence[Cache]
    ) -> Value:
        """ids [B, L], token_types [B, L] where the model has them → [B, L, E].

        `caches`, one a layer, keep nothing: they tell padding from tokens.
        """
        x = ops.embed(self.embed_tokens, ids)
        if self._config.token_types:
            x = ops.add(x, ops.embed(self.embed_token_types, token_types))
        return self.stack(ops, x, caches)
