"""BLOOM: ALiBi, normalised embeddings, one table for embedding and unembedding."""

from ..config import ModelConfig, Norm
from .common.alibi import alibi
from .common.reader import ConfigReader
from .common.shape import read_shape, same_blocks
from .common.weights import Weights, rename, split_groups


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a BLOOM config.json."""
    shape = read_shape(
        reader,
        context=2048,  # tokens of the training sequences; transformers' configs do not say
        hidden_size=reader.spelled("hidden_size", "n_embed"),
        layers=reader.spelled("n_layer", "num_hidden_layers"),
        heads=reader.spelled("n_head", "num_attention_heads"),
        context_key="seq_length",
    )
    reader.only("apply_residual_connection_post_layernorm", False)
    reader.only("n_inner", 4 * shape.hidden_size)
    reader.skip(
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",  # a constant that the softmax takes away
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",  # the order of float16's roundings
        "unk_token_id",
    )
    return ModelConfig(
        family="bloom",
        **shape.sizes(),
        feed_forward=4 * shape.hidden_size,
        norm=Norm(reader.take("layer_norm_epsilon", float, 1e-5), "layer", bias=True),
        blocks=same_blocks(shape.layers, alibi(shape.heads)),
        activation="gelu_tanh",
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
        embedding_norm=True,
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """q, k and v of one head lie side by side."""
    weights = rename(
        weights,
        (r"^transformer\.", ""),
        (r"^word_embeddings\.", "model.embed_tokens."),
        (r"^word_embeddings_layernorm\.", "model.embedding_norm."),
        (r"^ln_f\.", "model.norm."),
        (r"^h\.", "model.layers."),
        (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
        (r"\.self_attention\.query_key_value\.", ".self_attn.query_key_value."),
        (r"\.mlp\.dense_h_to_4h\.", ".mlp.up_proj."),
        (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
    )
    dim = config.head_dim
    parts = [("q_proj", dim), ("k_proj", dim), ("v_proj", dim)]
    return split_groups(weights, "query_key_value", config.heads, parts)
