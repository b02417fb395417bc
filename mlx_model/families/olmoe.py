"""OLMoE: many small experts, and q and k normalised over all heads (arXiv:2409.02060)."""

from ..config import Experts, HeadNorm, ModelConfig, Norm
from .common.experts import skip_training_keys, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.shape import read_llama_like, read_shape
from .common.weights import Weights


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate an OLMoE config.json."""
    skip_training_keys(reader)
    norm = Norm(reader.take("rms_norm_eps", float, 1e-5))
    attention_bias = reader.take("attention_bias", bool, False)
    config = read_llama_like(
        reader,
        read_shape(reader, context=4096),
        family="olmoe",
        norm=norm,
        head_norm=HeadNorm(norm, over="width"),
        clip_qkv=reader.take("clip_qkv", float, None),
        attention_bias=attention_bias,
        output_bias=attention_bias,
    )
    experts = Experts(
        count=reader.positive(reader.spelled("num_experts", "num_local_experts"), 64),
        per_token=reader.positive("num_experts_per_tok", 8),
        feed_forward=config.feed_forward,
        renormalise=reader.take("norm_topk_prob", bool, False),
    )
    return with_experts(config, experts)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts."""
    return stack_experts(weights, config)
