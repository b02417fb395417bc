"""The one description of a decoder that the forward, the engines and the exporter read."""

from dataclasses import dataclass

from ..kernels.spec import AttentionSpec
from .positions import Position, RopeConfig


@dataclass(frozen=True)
class Norm:
    """How activations are normalised; always computed in float32."""

    eps: float  # added to the mean square or the variance
    kind: str = "rms"  # "rms" (arXiv:1910.07467) or "layer" (arXiv:1607.06450)
    bias: bool = False  # "layer" only
    plus_one: bool = False  # "rms" only: the factor is 1 + weight (Gemma)


@dataclass(frozen=True)
class HeadNorm:
    """A norm of q and of k before they are rotated (arXiv:2302.05442)."""

    norm: Norm
    # "head": each head by itself, one weight [D] for all; "each": the same, a weight [H, D];
    # "width": all heads as one vector, a weight [H·D].
    over: str = "head"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of an MLP, and how tokens are routed to them.

    The router gives a score for each expert; the `per_token` best compute, weighted by score.
    """

    count: int  # X
    per_token: int
    feed_forward: int  # hidden units of one expert
    score: str = "softmax"  # of the router's logits over all X: "softmax" or "sigmoid"
    renormalise: bool = True  # the chosen scores are divided by their sum
    scale: float = 1.0  # multiplies the chosen scores
    correction: bool = False  # a bias [X] is added for choosing, not for weighting (2408.15664)
    groups: int = 1  # experts are chosen within the best `chosen_groups` of so many groups
    chosen_groups: int = 1  # groups are ranked by the sum of their two best scores
    router_bias: bool = False
    bias: bool = False  # biases in the experts
    shared: int = 0  # hidden units of an MLP that all tokens pass; 0: there is none
    shared_gate: bool = False  # that MLP's output is multiplied by sigmoid of a learned score


@dataclass(frozen=True)
class BlockConfig:
    """What may differ from layer to layer."""

    position: Position  # how q and k get to know their places
    window: int | None = None  # W, keys, the current one included; None: all
    experts: Experts | None = None  # None: a dense MLP
    scale: float = 1.0  # multiplies q·k beside ModelConfig.scale


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape and arithmetic; families translate every public spelling into it."""

    family: str  # the checkpoint's model_type, e.g. "llama"
    vocab_size: int  # V, tokens
    hidden_size: int  # E
    heads: int  # H, query heads
    kv_heads: int  # K, key/value heads; divides H
    head_dim: int  # D
    feed_forward: int  # F, hidden units of a dense MLP
    context: int  # longest sequence that the model was made for, tokens
    norm: Norm
    blocks: tuple[BlockConfig, ...]  # one a layer, N
    # Where a block normalises (see decoder.py): "pre", "output", "sandwich", "parallel" (one norm
    # for attention and MLP, which run side by side) or "parallel_two" (a norm for each).
    placement: str = "pre"
    activation: str = "silu"  # see activations.py
    gated: bool = True  # the MLP is down(activation(gate) · up), otherwise down(activation(up))
    scale: float | None = None  # multiplies q·k; None: 1/sqrt(D)
    softcap: float | None = None  # caps the scores of attention (AttentionSpec)
    clip_qkv: float | None = None  # q, k and v are clipped to ± this
    head_norm: HeadNorm | None = None  # of q and k
    sinks: bool = False  # a learned logit a head that takes attention and gives nothing
    attention_bias: bool = False  # biases on the q, k and v projections
    output_bias: bool = False  # bias on attention's output projection
    mlp_bias: bool = False  # biases on the MLP's projections
    head_bias: bool = False  # bias on the unembedding
    tie_embeddings: bool = False  # the unembedding is the embedding table
    embedding_multiplier: float = 1.0  # multiplies the embeddings
    embedding_norm: bool = False  # embeddings are normalised
    learned_positions: int = 0  # rows of a table that is added to the embeddings; 0: none
    position_offset: int = 0  # row of that table that belongs to position 0
    residual_multiplier: float = 1.0  # multiplies what attention and MLP add to the residual
    logit_scale: float = 1.0  # multiplies the logits
    logit_softcap: float | None = None  # logits become cap·tanh(logits/cap)

    @property
    def layers(self) -> int:
        """N."""
        return len(self.blocks)

    def attention(self, layer: int) -> AttentionSpec:
        """What attention computes in that layer."""
        block = self.blocks[layer]
        return AttentionSpec(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=(self.head_dim**-0.5 if self.scale is None else self.scale) * block.scale,
            window=block.window,
            softcap=self.softcap,
        )

    @property
    def rope_switch(self) -> int | None:
        """The length in tokens beyond which the model rotates otherwise; None: never."""
        return self._switching.switch if self._switching else None

    @property
    def rope_grows(self) -> bool:
        """Whether each length beyond that has a rotation of its own (dynamic NTK)."""
        return self._switching is not None and self._switching.scaling == "dynamic"

    def rotated_as(self, length: int) -> int:
        """As `RopeConfig.rotated_as`; 0 where no layer turns by length."""
        return self._switching.rotated_as(length) if self._switching else 0

    @property
    def _switching(self) -> RopeConfig | None:
        """The rotation that depends on length; layers have no two of them."""
        positions = (block.position for block in self.blocks)
        return next((p for p in positions if isinstance(p, RopeConfig) and p.switch), None)
