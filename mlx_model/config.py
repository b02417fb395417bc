"""The one description of a decoder that the forward, the engines and the exporter read."""

from dataclasses import dataclass, field

from ..kernels.spec import AttentionSpec
from .positions import RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape and arithmetic; families translate every public spelling into it."""

    family: str  # the checkpoint's model_type, e.g. "llama"
    vocab_size: int  # V, tokens
    hidden_size: int  # E
    layers: int  # N
    heads: int  # H, query heads
    kv_heads: int  # K, key/value heads; divides H
    head_dim: int  # D
    feed_forward: int  # F, hidden units of the MLP
    context: int  # longest sequence that the model was made for, tokens
    norm_eps: float  # added to the mean square inside RMSNorm
    activation: str  # the MLP's gate: "silu"
    rope: RopeConfig  # positions of q and k
    attention_bias: bool = False  # biases on the q, k and v projections
    output_bias: bool = False  # bias on attention's output projection
    mlp_bias: bool = False  # biases on gate, up and down
    tie_embeddings: bool = False  # the unembedding is the embedding table
    attention: AttentionSpec = field(init=False)  # derived

    def __post_init__(self) -> None:
        spec = AttentionSpec(self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5)
        object.__setattr__(self, "attention", spec)
