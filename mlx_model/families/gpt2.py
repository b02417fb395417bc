"""GPT-2: learned positions, LayerNorm, one table for embedding and unembedding."""

from dataclasses import replace

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.shape import read_activation, read_shape, same_blocks
from .common.weights import Weights, drop, rename, split, transpose


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GPT-2 config.json."""
    shape = read_shape(
        reader,
        context=1024,
        hidden_size="n_embd",
        layers="n_layer",
        heads="n_head",
        context_key="n_positions",
    )
    blocks = same_blocks(shape.layers, None)
    if reader.take("scale_attn_by_inverse_layer_idx", bool, False):
        blocks = tuple(replace(block, scale=1 / (i + 1)) for i, block in enumerate(blocks))
    reader.only("add_cross_attention", False)
    reader.skip(
        "n_ctx",  # the size of the causal mask, once
        "reorder_and_upcast_attn",  # the order of float16's roundings
        "summary_type",  # these make the double-heads model's choice
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    )
    return ModelConfig(
        family="gpt2",
        **shape.sizes(),
        feed_forward=reader.positive("n_inner", 4 * shape.hidden_size),
        norm=Norm(reader.take("layer_norm_epsilon", float, 1e-5), "layer", bias=True),
        blocks=blocks,
        activation=read_activation(reader, "activation_function", "gelu_new"),
        gated=False,
        scale=None if reader.take("scale_attn_weights", bool, True) else 1.0,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
        learned_positions=shape.context,
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Linear layers are stored [in, out] by transformers and [out, in] by mlx-lm."""
    turned = any(name.startswith("model.h.") for name in weights)  # mlx-lm's prefix
    weights = drop(weights, r".*h\.\d+\.attn\.(bias|masked_bias)")
    weights = rename(
        weights,
        (r"^(transformer|model)\.", ""),
        (r"^wte\.", "model.embed_tokens."),
        (r"^wpe\.", "model.embed_positions."),
        (r"^ln_f\.", "model.norm."),
        (r"^h\.", "model.layers."),
        (r"\.ln_1\.", ".input_layernorm."),
        (r"\.ln_2\.", ".post_attention_layernorm."),
        (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
        (r"\.attn\.c_attn\.", ".self_attn.c_attn."),
        (r"\.mlp\.c_fc\.", ".mlp.up_proj."),
        (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
    )
    if not turned:
        weights = transpose(weights, r".*\.(c_attn|o_proj|up_proj|down_proj)")
    width = config.heads * config.head_dim
    parts = [("q_proj", width), ("k_proj", width), ("v_proj", width)]
    return split(weights, "c_attn", parts)
