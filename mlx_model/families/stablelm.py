"""StableLM: LayerNorm, a part of each head turned, q/k-norm with weights for each head."""

from ..config import HeadNorm, ModelConfig, Norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_llama_like, read_shape, same_blocks
from .common.weights import Weights, stack


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a StableLM config.json."""
    shape = read_shape(reader, context=4096)
    defaults = RopeDefaults(shape.head_dim, shape.context, partial=0.25, partly=True)
    eps = reader.take("layer_norm_eps", float, 1e-5)
    head_norm = HeadNorm(Norm(eps, "layer"), over="each")
    return read_llama_like(
        reader,
        shape,
        family="stablelm",
        norm=Norm(eps, "layer", bias=True),
        blocks=same_blocks(shape.layers, read_rope(reader, defaults)),
        placement="parallel" if reader.take("use_parallel_residual", bool, False) else "pre",
        head_norm=head_norm if reader.take("qk_layernorm", bool, False) else None,
        attention_bias=reader.take("use_qkv_bias", bool, False),
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Each head's norm is stored by itself."""
    for part, heads in (("q", config.heads), ("k", config.kv_heads)):
        pattern = rf"(.*\.self_attn)\.{part}_layernorm\.norms\.(?P<expert>\d+)"
        weights = stack(weights, pattern, rf"\1.{part}_norm", heads)
    return weights
