"""Mixtral: Mistral with experts for MLPs, the best two of a token (arXiv:2401.04088)."""

from ..config import Experts, ModelConfig, Norm
from .common.experts import skip_training_keys, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_llama_like, read_shape, same_blocks
from .common.weights import Weights, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Mixtral config.json."""
    skip_training_keys(reader)
    shape = read_shape(reader, context=131072, kv_heads=8)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context, base=1e6))
    window = inside(reader.take("sliding_window", int, None), shape.context)
    config = read_llama_like(
        reader,
        shape,
        family="mixtral",
        blocks=same_blocks(shape.layers, rope, window),
        norm=Norm(reader.take("rms_norm_eps", float, 1e-5)),
    )
    experts = Experts(
        count=reader.positive(reader.spelled("num_local_experts", "num_experts"), 8),
        per_token=reader.positive("num_experts_per_tok", 2),
        feed_forward=config.feed_forward,
    )
    return with_experts(config, experts)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts under our name."""
    return stack_experts(rename(weights, (r"\.block_sparse_moe\.", ".mlp.")), config)
