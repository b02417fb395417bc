"""Granite 3 MoE: Granite's multipliers, and experts for MLPs."""

from dataclasses import replace

from ..config import Experts, ModelConfig
from . import granite
from .common.experts import skip_training_keys, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.weights import Weights, rename


def read_config(reader: ConfigReader, shared: int = 0) -> ModelConfig:
    """Translate a Granite MoE config.json; `shared`: hidden units that all tokens pass."""
    skip_training_keys(reader)
    reader.only("mlp_bias", False)
    config = granite.read_config(reader)
    experts = Experts(
        count=reader.positive(reader.spelled("num_local_experts", "num_experts"), 8),
        per_token=reader.positive("num_experts_per_tok", 2),
        feed_forward=config.feed_forward,
        shared=shared,
    )
    return with_experts(replace(config, family="granitemoe"), experts)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts under our name; older checkpoints call them input and output."""
    renamed = rename(
        weights,
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.mlp\.router\.(layer\.)?", ".mlp.gate."),
        (r"\.mlp\.input_linear\.", ".mlp.experts.gate_up_proj."),
        (r"\.mlp\.output_linear\.", ".mlp.experts.down_proj."),
    )
    return stack_experts(renamed, config)
