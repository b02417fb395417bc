"""Command-R7B and Command A: windowed layers with RoPE, every fourth without either."""

from ..config import BlockConfig, ModelConfig, Norm
from .cohere import BASE
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import inside, read_layer_types, read_llama_like, read_shape

_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Cohere2 config.json."""
    shape = read_shape(reader, context=8192)
    rope = read_rope(
        reader, RopeDefaults(shape.head_dim, shape.context, base=BASE, interleaved=True)
    )
    window = inside(reader.positive("sliding_window", 4096), shape.context)
    pattern = reader.positive(reader.spelled("sliding_window_pattern", "layer_switch"), 4)
    default = [_SLIDING if (i + 1) % pattern else _FULL for i in range(shape.layers)]
    kinds = read_layer_types(reader, shape.layers, default, (_SLIDING, _FULL))
    blocks = {_SLIDING: BlockConfig(rope, window), _FULL: BlockConfig(None)}
    bias = reader.take("attention_bias", bool, False)
    for key, value in _PUBLISHED.items():
        reader.only(key, value)
    reader.skip("cache_implementation", "model_max_length")
    return read_llama_like(
        reader,
        shape,
        family="cohere2",
        tied=True,
        norm=Norm(reader.take("layer_norm_eps", float, 1e-5), "layer"),
        blocks=tuple(blocks[kind] for kind in kinds),
        placement="parallel",
        attention_bias=bias,
        output_bias=bias,
        logit_scale=reader.take("logit_scale", float, 0.0625),
    )


# What published configs say of the architecture beside what transformers reads.
_PUBLISHED = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "use_qk_norm": False,
}
