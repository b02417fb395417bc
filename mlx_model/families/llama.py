"""Llama 2 and 3, SmolLM2, TinyLlama and whatever else says model_type "llama"."""

from ...runtime.errors import InputError
from ..config import ModelConfig
from .reader import ConfigReader
from .rope import read_rope


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Llama config.json."""
    attention_bias = reader.take("attention_bias", bool, False)
    return read_llama_like(
        reader,
        family="llama",
        default_context=2048,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.take("mlp_bias", bool, False),
    )


def read_llama_like(
    reader: ConfigReader,
    *,
    family: str,
    default_context: int,
    attention_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
) -> ModelConfig:
    """The keys that Llama shares with its descendants; defaults are those of transformers."""
    hidden = reader.positive("hidden_size")
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_dim = reader.positive("head_dim", None)
    if head_dim is None and hidden % heads:
        raise InputError(f"config.json has hidden_size {hidden}, no multiple of {heads} heads")
    head_dim = head_dim or hidden // heads
    if heads % kv_heads:
        raise InputError(f"config.json has {heads} heads, no multiple of {kv_heads} kv heads")
    if head_dim % 2:
        raise InputError(f"config.json gives head_dim {head_dim}; RoPE needs an even number")
    reader.only("hidden_act", "silu", "swish")
    context = reader.positive("max_position_embeddings", default_context)
    return ModelConfig(
        family=family,
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        layers=reader.positive("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=reader.positive("intermediate_size"),
        context=context,
        norm_eps=reader.take("rms_norm_eps", float, 1e-6),
        activation="silu",
        rope=read_rope(reader, head_dim, context),
        attention_bias=attention_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        tie_embeddings=reader.take("tie_word_embeddings", bool, False),
    )
