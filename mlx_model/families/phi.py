"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side, heads that turn in part, biases."""

from ..config import HeadNorm, ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_activation, read_llama_like, read_shape, same_blocks
from .common.weights import Weights, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Phi config.json."""
    shape = read_shape(reader, context=2048)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context, partial=0.5, partly=True))
    norm = Norm(reader.take("layer_norm_eps", float, 1e-5), kind="layer", bias=True)
    return read_llama_like(
        reader,
        shape,
        family="phi",
        blocks=same_blocks(shape.layers, rope),
        norm=norm,
        head_norm=HeadNorm(norm) if reader.take("qk_layernorm", bool, False) else None,
        placement="parallel",
        activation=read_activation(reader, "hidden_act", "gelu_new"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Give Phi's own names their usual ones."""
    return rename(
        weights,
        (r"\.self_attn\.dense\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"\.mlp\.fc1\.", ".mlp.up_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        (r"^model\.final_layernorm\.", "model.norm."),
    )
