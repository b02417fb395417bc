"""Qwen1.5 and Qwen2 MoE: experts beside one that all tokens pass, weighed by a score."""

from ..config import BlockConfig, Experts, ModelConfig
from .common.experts import skip_training_keys, sparse_layers, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import Shape, read_layer_types, read_llama_like, read_shape
from .common.weights import Weights
from .common.windows import FULL, SLIDING, windows_of

_DEFAULT_WINDOW = 4096  # what an absent key means; a null window means none


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Qwen2 MoE config.json."""
    skip_training_keys(reader)
    shape = read_shape(reader, context=32768, kv_heads=16)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    config = read_llama_like(
        reader,
        shape,
        family="qwen2_moe",
        blocks=tuple(BlockConfig(rope, window) for window in _read_windows(reader, shape)),
        attention_bias=reader.take("qkv_bias", bool, True),
    )
    experts = Experts(
        count=reader.positive(reader.spelled("num_experts", "num_local_experts"), 60),
        per_token=reader.positive("num_experts_per_tok", 4),
        feed_forward=reader.positive("moe_intermediate_size", 1408),
        renormalise=reader.take("norm_topk_prob", bool, False),
        shared=reader.positive("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return with_experts(config, experts, sparse_layers(reader, shape.layers))


def _read_windows(reader: ConfigReader, shape: Shape) -> list[int | None]:
    """The window of each layer: where a switch is on, of every other one among the lower layers."""
    sliding = reader.take("use_sliding_window", bool, False)
    absent = not reader.has("sliding_window")
    window = reader.take("sliding_window", int, _DEFAULT_WINDOW if absent else None)
    lower = reader.take("max_window_layers", int, 28)
    default = [
        SLIDING if sliding and layer % 2 == 0 and layer < lower else FULL
        for layer in range(shape.layers)
    ]
    kinds = read_layer_types(reader, shape.layers, default, (FULL, SLIDING))
    return windows_of(kinds, window if sliding else None, shape.context)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts."""
    return stack_experts(weights, config)
