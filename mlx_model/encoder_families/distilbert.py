"""DistilBERT: BERT without token types, with names of its own."""

from ..config import Norm
from ..encoder_config import EncoderConfig, StackConfig
from ..families.common.reader import ConfigReader
from ..families.common.weights import Weights, drop, rename
from .common import activation, head_dim, ignore

_EPS = 1e-12  # no key says otherwise


def read_config(reader: ConfigReader) -> EncoderConfig:
    """Translate a DistilBERT config.json."""
    # The table of positions is stored, whatever it was made by.
    ignore(reader, "sinusoidal_pos_embds", "tie_weights_", "tie_word_embeddings")
    hidden, heads = reader.positive("dim", 768), reader.positive("n_heads", 12)
    stack = StackConfig(
        hidden_size=hidden,
        heads=heads,
        head_dim=head_dim(hidden, heads),
        feed_forward=reader.positive("hidden_dim", 3072),
        layers=reader.positive("n_layers", 6),
        norm=Norm(_EPS, kind="layer", bias=True),
        activation=activation(reader.take("activation", str, "gelu"), "activation"),
        positions=reader.positive("max_position_embeddings", 512),
        embedding_norm=True,
    )
    return EncoderConfig("distilbert", reader.positive("vocab_size"), token_types=0, stack=stack)


def convert(weights: Weights, config: EncoderConfig) -> Weights:
    """Without the head of pre-training."""
    weights = rename(
        weights,
        (r"^distilbert\.", ""),
        (r"^embeddings\.word_embeddings\.", "embed_tokens."),
        (r"^embeddings\.position_embeddings\.", "stack.embed_positions."),
        (r"^embeddings\.LayerNorm\.", "stack.embedding_norm."),
        (r"^transformer\.layer\.", "stack.layers."),
        (r"\.attention\.([qkv])_lin\.", r".self_attn.\1_proj."),
        (r"\.attention\.out_lin\.", ".self_attn.o_proj."),
        (r"\.sa_layer_norm\.", ".self_attn_norm."),
        (r"\.ffn\.lin1\.", ".mlp.up_proj."),
        (r"\.ffn\.lin2\.", ".mlp.down_proj."),
        (r"\.output_layer_norm\.", ".mlp_norm."),
    )
    return drop(weights, r"vocab_(transform|layer_norm|projector)\..*|embeddings\.position_ids")
