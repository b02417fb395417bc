"""Arcee's AFM: Llama whose MLP has no gate and squares its ReLU (arXiv:2109.08668)."""

from ..config import ModelConfig, Norm
from .common.reader import ConfigReader
from .common.shape import read_activation, read_llama_like, read_shape


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate an Arcee config.json."""
    attention_bias = reader.take("attention_bias", bool, False)
    return read_llama_like(
        reader,
        read_shape(reader, context=4096),
        family="arcee",
        norm=Norm(reader.take("rms_norm_eps", float, 1e-5)),
        activation=read_activation(reader, "hidden_act", "relu2"),
        gated=False,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.take("mlp_bias", bool, False),
    )
