"""Llama 2 and 3, SmolLM2, TinyLlama and whatever else says model_type "llama"."""

from dataclasses import replace

from ..config import ModelConfig
from .common.reader import ConfigReader
from .common.shape import read_llama_like, read_shape


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Llama config.json."""
    attention_bias = reader.take("attention_bias", bool, False)
    shape = read_shape(reader, context=2048)
    # FastChat's fine-tunes state here how far their linear RoPE reaches.
    context = max(shape.context, reader.positive("max_sequence_length", 1))
    return read_llama_like(
        reader,
        replace(shape, context=context),
        family="llama",
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.take("mlp_bias", bool, False),
    )
