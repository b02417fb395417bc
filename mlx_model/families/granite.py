"""Granite 3: Llama with a multiplier on embeddings, scores, residuals and logits."""

from ...runtime.errors import InputError
from ..config import ModelConfig
from .common.reader import ConfigReader
from .common.shape import read_llama_like, read_shape


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Granite config.json."""
    attention_bias = reader.take("attention_bias", bool, False)
    divisor = reader.take("logits_scaling", float, 1.0)
    if divisor == 0.0:
        raise InputError("config.json has logits_scaling 0, by which logits are divided")
    return read_llama_like(
        reader,
        read_shape(reader, context=2048),
        family="granite",
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.take("mlp_bias", bool, False),
        scale=reader.take("attention_multiplier", float, 1.0),
        embedding_multiplier=reader.take("embedding_multiplier", float, 1.0),
        residual_multiplier=reader.take("residual_multiplier", float, 1.0),
        logit_scale=1.0 / divisor,
    )
