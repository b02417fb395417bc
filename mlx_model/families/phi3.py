"""Phi-3, Phi-3.5 and Phi-4: Llama with fused projections, a window, and longrope."""

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_llama_like, read_shape, same_blocks
from .common.weights import Weights, split


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Phi-3 config.json."""
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        reader.only(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        reader.only(key, 1)
    shape = read_shape(reader, context=4096)
    original = reader.positive("original_max_position_embeddings", 4096)
    rope = read_rope(
        reader, RopeDefaults(shape.head_dim, shape.context, partly=True, original_context=original)
    )
    window = inside(reader.take("sliding_window", int, None), shape.context)
    return read_llama_like(
        reader,
        shape,
        family="phi3",
        blocks=same_blocks(shape.layers, rope, window),
        norm=Norm(reader.take("rms_norm_eps", float, 1e-5)),
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Split the fused projections."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width = config.feed_forward
    weights = split(weights, "qkv_proj", [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)])
    return split(weights, "gate_up_proj", [("gate_proj", width), ("up_proj", width)])
