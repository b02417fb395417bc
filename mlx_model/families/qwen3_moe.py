"""Qwen3 MoE: Qwen3 with experts in all or some of the layers (arXiv:2505.09388)."""

from ..config import Experts, HeadNorm, ModelConfig, Norm
from .common.experts import skip_training_keys, sparse_layers, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_llama_like, read_shape, same_blocks
from .common.weights import Weights

_DEFAULT_WINDOW = 4096  # what an absent key means; a null window means none


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Qwen3 MoE config.json."""
    skip_training_keys(reader)
    reader.skip("max_window_layers")  # this class windows all layers or none
    shape = read_shape(reader, context=32768, kv_heads=4)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    sliding = reader.take("use_sliding_window", bool, False)
    absent = not reader.has("sliding_window")
    window = reader.take("sliding_window", int, _DEFAULT_WINDOW if absent else None)
    norm = Norm(reader.take("rms_norm_eps", float, 1e-6))
    attention_bias = reader.take("attention_bias", bool, False)
    config = read_llama_like(
        reader,
        shape,
        family="qwen3_moe",
        blocks=same_blocks(shape.layers, rope, inside(window, shape.context) if sliding else None),
        norm=norm,
        head_norm=HeadNorm(norm),
        attention_bias=attention_bias,
        output_bias=attention_bias,
    )
    experts = Experts(
        count=reader.positive(reader.spelled("num_experts", "num_local_experts"), 128),
        per_token=reader.positive("num_experts_per_tok", 8),
        feed_forward=reader.positive("moe_intermediate_size", 768),
        renormalise=reader.take("norm_topk_prob", bool, False),
    )
    return with_experts(config, experts, sparse_layers(reader, shape.layers))


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts."""
    return stack_experts(weights, config)
