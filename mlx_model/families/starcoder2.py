"""StarCoder2: LayerNorm and biases in Llama's places, an MLP without a gate."""

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_activation, read_shape, same_blocks
from .common.weights import Weights, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a StarCoder2 config.json."""
    shape = read_shape(reader, context=4096, kv_heads=2)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    window = inside(reader.positive("sliding_window", None), shape.context)
    reader.only("mlp_type", "default")
    reader.only("norm_type", "layer_norm")
    reader.only("scale_attn_weights", True)
    reader.skip(
        "attention_softmax_in_fp32",  # softmax is in float32 always
        "embedding_dropout",
        "residual_dropout",
        "scale_attention_softmax_in_fp32",
    )
    bias = reader.take("use_bias", bool, True)
    eps = reader.take(reader.spelled("norm_epsilon", "layer_norm_epsilon"), float, 1e-5)
    return ModelConfig(
        family="starcoder2",
        **shape.sizes(),
        feed_forward=reader.positive("intermediate_size"),
        norm=Norm(eps, "layer", bias=True),
        blocks=same_blocks(shape.layers, rope, window),
        activation=read_activation(reader, "hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """The MLP alone has other names."""
    return rename(
        weights,
        (r"\.mlp\.c_fc\.", ".mlp.up_proj."),
        (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
    )
