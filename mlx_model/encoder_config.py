"""The description of an encoder, and of an encoder with a decoder that reads what it says."""

from dataclasses import dataclass

from ..kernels.spec import AttentionSpec
from .config import Norm
from .relative_bias import RelativeBias


@dataclass(frozen=True)
class StackConfig:
    """One stack of blocks: an encoder, or the decoder of an encoder-decoder.

    Fields that ModelConfig has too are called as they are there.
    """

    hidden_size: int  # E
    heads: int  # H
    head_dim: int  # D
    feed_forward: int  # F
    layers: int  # N
    norm: Norm
    # "post": norm(x + branch(x)), as in arXiv:1706.03762; "pre": x + branch(norm(x)), and a norm
    # at the end
    placement: str = "post"
    activation: str = "gelu"  # see activations.py
    gated: bool = False
    bias: bool = True  # on all projections
    scale: float | None = None  # multiplies q·k; None: 1/sqrt(D)
    embedding_multiplier: float = 1.0  # multiplies the embeddings
    positions: int = 0  # rows of a table that is added to the embeddings; 0: none
    position_offset: int = 0  # row of that table that belongs to position 0
    embedding_norm: bool = False  # embeddings are normalised
    relative: RelativeBias | None = None  # what scores get by distance, the same in all layers
    causal: bool = False  # a token sees those up to itself, otherwise all
    crossing: bool = False  # a block also attends to an encoder's output

    @property
    def mlp_bias(self) -> bool:
        """By this name, `decoder.MLP` asks for it."""
        return self.bias

    @property
    def context(self) -> int | None:
        """The longest sequence that has positions, tokens; None: there is no end."""
        return self.positions - self.position_offset if self.positions else None

    def attention(self, causal: bool) -> AttentionSpec:
        """What attention computes, over the tokens themselves or an encoder's output."""
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return AttentionSpec(self.heads, self.heads, self.head_dim, scale, causal=causal)


@dataclass(frozen=True)
class EncoderConfig:
    """An encoder that makes a vector of each token."""

    family: str  # the checkpoint's model_type, e.g. "bert"
    vocab_size: int  # V
    token_types: int  # rows of the table of segments (arXiv:1810.04805); 0: there is none
    stack: StackConfig


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder and a decoder with one table of embeddings."""

    family: str  # the checkpoint's model_type, e.g. "t5"
    vocab_size: int  # V
    encoder: StackConfig
    decoder: StackConfig
    start_token: int  # what a reply begins with
    tie_embeddings: bool = True  # the unembedding is the embedding table
    head_scale: float = 1.0  # multiplies what the unembedding is given
    logits_bias: bool = False  # a vector [V] is added to the logits

    @property
    def context(self) -> int | None:
        """The longest text on either side, tokens; None: there is no end."""
        ends = [c for c in (self.encoder.context, self.decoder.context) if c is not None]
        return min(ends, default=None)
