"""Gemma 2: every other layer has a window, scores and logits are capped (arXiv:2408.00118)."""

from ..config import BlockConfig, ModelConfig
from .common.gemma import read_gemma_like, read_gemma_norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_layer_types, read_shape
from .common.windows import FULL, SLIDING, windows_of


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Gemma 2 config.json."""
    shape = read_shape(reader, context=8192, kv_heads=4, head_dim=256)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    window = reader.take("sliding_window", int, None if reader.has("sliding_window") else 4096)
    reader.only("sliding_window_size", window)  # the first release states it twice
    alternating = [(SLIDING, FULL)[layer % 2] for layer in range(shape.layers)]
    kinds = read_layer_types(reader, shape.layers, alternating, (FULL, SLIDING))
    windows = windows_of(kinds, window, shape.context)
    return read_gemma_like(
        reader,
        shape,
        family="gemma2",
        norm=read_gemma_norm(reader),
        blocks=tuple(BlockConfig(rope, window) for window in windows),
        placement="sandwich",
        scale=reader.positive("query_pre_attn_scalar", 256) ** -0.5,
        softcap=_read_cap(reader, "attn_logit_softcapping", 50.0),
        logit_softcap=_read_cap(reader, "final_logit_softcapping", 30.0),
    )


def _read_cap(reader: ConfigReader, key: str, default: float) -> float | None:
    """A null cap means none."""
    return reader.take(key, float, None if reader.has(key) else default)
