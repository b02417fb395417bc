"""BERT, and what others made with its shape: MiniLM, BGE, E5, GTE."""

from ..encoder_config import EncoderConfig
from ..families.common.reader import ConfigReader
from ..families.common.weights import Weights, drop, rename
from .common import bert_stack, ignore

# Of models that say "bert" and name sizes of a pooler they do not have.
_POOLER = ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")


def read_config(reader: ConfigReader) -> EncoderConfig:
    """Translate a BERT config.json."""
    reader.only("position_embedding_type", "absolute")
    reader.only("is_decoder", False)
    reader.only("add_cross_attention", False)
    ignore(reader, "tie_word_embeddings", "directionality", *(f"pooler_{k}" for k in _POOLER))
    return EncoderConfig(
        family="bert",
        vocab_size=reader.positive("vocab_size"),
        token_types=reader.positive("type_vocab_size", 2),
        stack=bert_stack(reader),
    )


def convert(weights: Weights, config: EncoderConfig) -> Weights:
    """Without the pooler and the heads of pre-training, which make nothing of a token's vector."""
    weights = rename(
        weights,
        (r"^bert\.", ""),
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
        (r"^embeddings\.word_embeddings\.", "embed_tokens."),
        (r"^embeddings\.token_type_embeddings\.", "embed_token_types."),
        (r"^embeddings\.position_embeddings\.", "stack.embed_positions."),
        (r"^embeddings\.LayerNorm\.", "stack.embedding_norm."),
        (r"^encoder\.layer\.", "stack.layers."),
        (r"\.attention\.self\.query\.", ".self_attn.q_proj."),
        (r"\.attention\.self\.key\.", ".self_attn.k_proj."),
        (r"\.attention\.self\.value\.", ".self_attn.v_proj."),
        (r"\.attention\.output\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.output\.LayerNorm\.", ".self_attn_norm."),
        (r"\.intermediate\.dense\.", ".mlp.up_proj."),
        (r"\.output\.dense\.", ".mlp.down_proj."),
        (r"\.output\.LayerNorm\.", ".mlp_norm."),
    )
    return drop(weights, r"cls\..*|pooler\..*|embeddings\.(position|token_type)_ids")
