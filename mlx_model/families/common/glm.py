"""What the GLM-4 models have in common."""

from typing import Any

from ...config import ModelConfig, Norm
from .reader import ConfigReader
from .rope import RopeDefaults, read_rope
from .shape import read_llama_like, read_shape, same_blocks
from .weights import Weights, split


def read_glm_like(reader: ConfigReader, *, family: str, **changes: Any) -> ModelConfig:
    """The keys of all of them; `changes` are fields of ModelConfig."""
    shape = read_shape(reader, context=131072, kv_heads=2, head_dim=128)
    rope = read_rope(
        reader,
        RopeDefaults(shape.head_dim, shape.context, partial=0.5, partly=True, interleaved=True),
    )
    return read_llama_like(
        reader,
        shape,
        family=family,
        blocks=same_blocks(shape.layers, rope),
        norm=Norm(reader.take("rms_norm_eps", float, 1.5625e-07)),
        attention_bias=reader.take("attention_bias", bool, True),
        **changes,
    )


def split_mlp(weights: Weights, config: ModelConfig) -> Weights:
    """Split the fused gate and up projections."""
    width = config.feed_forward
    return split(weights, "gate_up_proj", [("gate_proj", width), ("up_proj", width)])
