"""Mistral: Llama with a sliding window in all layers (v0.1) or without."""

from ..config import ModelConfig
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_llama_like, read_shape, same_blocks

_DEFAULT_CONTEXT = 131072  # what an absent key means in transformers, tokens
_DEFAULT_WINDOW = 4096  # likewise; a null window means none


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Mistral config.json."""
    absent = not reader.has("sliding_window")
    window = reader.take("sliding_window", int, _DEFAULT_WINDOW if absent else None)
    shape = read_shape(reader, context=_DEFAULT_CONTEXT, kv_heads=8)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    blocks = same_blocks(shape.layers, rope, inside(window, shape.context))
    return read_llama_like(reader, shape, family="mistral", blocks=blocks)
