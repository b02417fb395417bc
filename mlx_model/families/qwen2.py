"""Qwen 1.5, 2 and 2.5: Llama with biases on q, k and v, and windows in the upper layers."""

from ..config import BlockConfig, ModelConfig
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_llama_like, read_shape
from .common.windows import read_upper_windows


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Qwen2 config.json."""
    reader.only("use_mrope", False)
    shape = read_shape(reader, context=32768, kv_heads=32)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    windows = read_upper_windows(reader, shape.layers, shape.context)
    blocks = tuple(BlockConfig(rope, window) for window in windows)
    return read_llama_like(reader, shape, family="qwen2", blocks=blocks, attention_bias=True)
