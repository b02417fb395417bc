"""Gemma 1: Llama with GeGLU, norms by 1 + weight and scaled embeddings (arXiv:2403.08295)."""

from ..config import ModelConfig
from .common.gemma import read_gemma_like, read_gemma_norm
from .common.reader import ConfigReader
from .common.shape import read_shape


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Gemma config.json."""
    shape = read_shape(reader, context=8192, kv_heads=16, head_dim=256)
    return read_gemma_like(reader, shape, family="gemma", norm=read_gemma_norm(reader))
