"""GPT-NeoX and Pythia: attention and MLP side by side, a part of each head turned."""

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_activation, read_shape, same_blocks
from .common.weights import Weights, drop, rename, split_groups


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GPT-NeoX config.json."""
    shape = read_shape(reader, context=2048)
    defaults = RopeDefaults(
        shape.head_dim,
        shape.context,
        base=reader.take("rotary_emb_base", float, 10000.0),
        partial=reader.take("rotary_pct", float, 0.25),
        partly=True,
    )
    bias = reader.take("attention_bias", bool, True)
    reader.skip("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
    return ModelConfig(
        family="gpt_neox",
        **shape.sizes(),
        feed_forward=reader.positive("intermediate_size"),
        norm=Norm(reader.take("layer_norm_eps", float, 1e-5), "layer", bias=True),
        blocks=same_blocks(shape.layers, read_rope(reader, defaults)),
        placement="parallel_two" if reader.take("use_parallel_residual", bool, True) else "pre",
        activation=read_activation(reader, "hidden_act", "gelu"),
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        tie_embeddings=reader.take("tie_word_embeddings", bool, False),
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """q, k and v of one head lie side by side; mlx-lm has its own prefixes."""
    weights = drop(weights, r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)")
    weights = rename(
        weights,
        (r"^(gpt_neox|model)\.", ""),
        (r"^embed_in\.", "model.embed_tokens."),
        (r"^final_layer_norm\.", "model.norm."),
        (r"^embed_out\.", "lm_head."),
        (r"^(layers|h)\.", "model.layers."),
        (r"\.attention\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.query_key_value\.", ".self_attn.query_key_value."),
        (r"\.mlp\.dense_h_to_4h\.", ".mlp.up_proj."),
        (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
    )
    dim = config.head_dim
    parts = [("q_proj", dim), ("k_proj", dim), ("v_proj", dim)]
    return split_groups(weights, "query_key_value", config.heads, parts)
