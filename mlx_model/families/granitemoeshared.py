"""Granite MoE with an MLP beside the experts that all tokens pass."""

from dataclasses import replace

from ..config import ModelConfig
from . import granitemoe
from .common.reader import ConfigReader
from .common.weights import Weights, rename, split


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Granite MoE Shared config.json."""
    shared = reader.take("shared_intermediate_size", int, 0)
    return replace(granitemoe.read_config(reader, shared), family="granitemoeshared")


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Split the shared MLP, then as Granite MoE does."""
    width = config.blocks[0].experts.shared
    weights = rename(
        weights,
        (r"\.shared_mlp\.", ".mlp.shared_expert."),
        (r"(\.shared_expert)\.output_linear\.", r"\1.down_proj."),
    )
    fused = "shared_expert.input_linear"
    parts = [(f"shared_expert.{name}", width) for name in ("gate_proj", "up_proj")]
    return granitemoe.convert(split(weights, fused, parts), config)
