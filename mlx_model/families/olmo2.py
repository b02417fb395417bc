"""OLMo 2: norms after attention and MLP, and on all of q and of k (arXiv:2501.00656)."""

from ..config import HeadNorm, ModelConfig, Norm
from .common.reader import ConfigReader
from .common.shape import read_llama_like, read_shape


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate an OLMo 2 config.json."""
    attention_bias = reader.take("attention_bias", bool, False)
    norm = Norm(reader.take("rms_norm_eps", float, 1e-5))
    return read_llama_like(
        reader,
        read_shape(reader, context=2048),
        family="olmo2",
        norm=norm,
        head_norm=HeadNorm(norm, over="width"),
        placement="output",
        attention_bias=attention_bias,
        output_bias=attention_bias,
    )
