"""GLM-4 of 2024 (glm-4-9b-chat-hf): Llama whose heads turn by half and by neighbouring pairs."""

from ..config import ModelConfig
from .common.glm import read_glm_like, split_mlp
from .common.reader import ConfigReader
from .common.weights import Weights


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GLM config.json."""
    return read_glm_like(reader, family="glm")


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Split the MLP."""
    return split_mlp(weights, config)
