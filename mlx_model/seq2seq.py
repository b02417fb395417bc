"""An encoder-decoder: a text in, the next token of the reply out (arXiv:1706.03762)."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from .encoder_config import Seq2SeqConfig
from .ops import Cache, StackOps, Value
from .stack import Stack


class LogitsBias(nn.Module):
    """A vector that is added to the logits (Marian)."""

    def __init__(self, width: int):
        super().__init__()
        self.bias = mx.zeros((width,))


class Seq2Seq(nn.Module):
    """Two stacks with one table of embeddings, which may serve as the head too."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        hidden = config.encoder.hidden_size
        self.shared = nn.Embedding(config.vocab_size, hidden)
        self.encoder = Stack(config.encoder)
        self.decoder = Stack(config.decoder)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False)
        if config.logits_bias:
            self.logits_bias = LogitsBias(config.vocab_size)
        self._config = config

    @property
    def config(self) -> Seq2SeqConfig:
        """The description that this model was built from."""
        return self._config

    def encode(self, ops: StackOps, ids: Value, caches: Sequence[Cache]) -> Value:
        """ids [B, S] → what the decoder reads [B, S, E]; `caches` as in `Encoder`."""
        return self.encoder(ops, ops.embed(self.shared, ids), caches)

    def decode(
        self, ops: StackOps, ids: Value, caches: Sequence[Cache], crosses: Sequence[Cache]
    ) -> Value:
        """ids [B, L] of the reply → float32 logits [B, rows, V] (see `Ops.select_rows`).

        One cache a layer of the reply's tokens, and one of the encoder's output.
        """
        config = self._config
        x = self.decoder(ops, ops.embed(self.shared, ids), caches, crosses)
        x = ops.select_rows(x)
        if config.head_scale != 1.0:
            x = ops.scale(x, config.head_scale)
        logits = ops.unembed(self.shared if config.tie_embeddings else self.lm_head, x)
        return ops.shift(self.logits_bias, logits) if config.logits_bias else logits
