"""Command-R: attention and MLP side by side on one norm, LayerNorm without a bias."""

from ..config import HeadNorm, ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_llama_like, read_shape, same_blocks

BASE = 500000.0  # of RoPE where config.json has none


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Command-R config.json."""
    shape = read_shape(reader, context=8192)
    rope = RopeDefaults(shape.head_dim, shape.context, base=BASE, interleaved=True)
    norm = Norm(reader.take("layer_norm_eps", float, 1e-5), "layer")
    bias = reader.take("attention_bias", bool, False)
    reader.skip("model_max_length")  # of the tokenizer
    return read_llama_like(
        reader,
        shape,
        family="cohere",
        tied=True,
        norm=norm,
        blocks=same_blocks(shape.layers, read_rope(reader, rope)),
        placement="parallel",
        head_norm=HeadNorm(norm, "each") if reader.take("use_qk_norm", bool, False) else None,
        attention_bias=bias,
        output_bias=bias,
        logit_scale=reader.take("logit_scale", float, 0.0625),
    )
