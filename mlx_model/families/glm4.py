"""GLM-4 of 2025 (0414): GLM-4 with norms before and after attention and MLP."""

from ..config import ModelConfig
from .common.glm import read_glm_like, split_mlp
from .common.reader import ConfigReader
from .common.weights import Weights, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GLM-4 config.json."""
    return read_glm_like(reader, family="glm4", placement="sandwich")


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Split the MLP, and call the norms what Gemma 2 calls them."""
    return rename(
        split_mlp(weights, config),
        (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
        (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
        (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
    )
