"""Qwen3: Llama with normalised q and k heads of a size of their own."""

from ..config import BlockConfig, HeadNorm, ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_llama_like, read_shape
from .common.windows import read_upper_windows


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Qwen3 config.json."""
    shape = read_shape(reader, context=32768, kv_heads=32, head_dim=128)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    windows = read_upper_windows(reader, shape.layers, shape.context)
    norm = Norm(reader.take("rms_norm_eps", float, 1e-6))
    attention_bias = reader.take("attention_bias", bool, False)
    return read_llama_like(
        reader,
        shape,
        family="qwen3",
        blocks=tuple(BlockConfig(rope, window) for window in windows),
        norm=norm,
        head_norm=HeadNorm(norm),
        attention_bias=attention_bias,
        output_bias=attention_bias,
    )
