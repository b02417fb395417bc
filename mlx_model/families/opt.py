"""OPT: learned positions from row 2 of their table, ReLU; Galactica: no biases, GELU."""

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.shape import read_activation, read_shape, same_blocks
from .common.weights import Weights, rename

_OFFSET = 2  # rows before that of position 0: positions were counted from the padding token's id


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate an OPT config.json."""
    shape = read_shape(reader, context=2048)
    reader.only("do_layer_norm_before", True)
    reader.only("_remove_final_layer_norm", False)
    reader.only("word_embed_proj_dim", shape.hidden_size)
    reader.only("learned_embeddings", True)
    reader.only("scale_embeddings", False)
    affine = reader.take("layer_norm_elementwise_affine", bool, True)
    reader.skip("activation_dropout", "dropout", "init_std", "layerdrop", "prefix")
    bias = reader.take("enable_bias", bool, True)
    return ModelConfig(
        family="opt",
        **shape.sizes(),
        feed_forward=reader.positive("ffn_dim"),
        norm=Norm(1e-5, "layer", bias=affine),
        blocks=same_blocks(shape.layers, None),
        activation=read_activation(reader, "activation_function", "relu"),
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
        learned_positions=shape.context + _OFFSET,
        position_offset=_OFFSET,
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """The norm before an MLP has the name of the last norm of all; Galactica's norms neither scale
    nor shift, which is a scale of 1."""
    weights = rename(
        weights,
        (r"^(model\.)?decoder\.", "model."),
        (r"^model\.final_layer_norm\.", "model.norm."),
        (r"\.self_attn_layer_norm\.", ".input_layernorm."),
        (r"(layers\.\d+)\.final_layer_norm\.", r"\1.post_attention_layernorm."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.fc1\.", ".mlp.up_proj."),
        (r"\.fc2\.", ".mlp.down_proj."),
    )
    return weights if config.norm.bias else {**_unit_norms(weights, config), **weights}


def _unit_norms(weights: Weights, config: ModelConfig) -> Weights:
    import mlx.core as mx

    names = ["model.norm"]
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        names += [f"{block}.input_layernorm", f"{block}.post_attention_layernorm"]
    dtype = next((w.dtype for w in weights.values() if mx.issubdtype(w.dtype, mx.floating)), None)
    return {f"{name}.weight": mx.ones((config.hidden_size,), dtype) for name in names}
