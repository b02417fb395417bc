"""What all Gemmas have in common."""

from typing import Any

from ....runtime.errors import InputError
from ...activations import ACTIVATIONS
from ...config import ModelConfig, Norm
from .reader import ConfigReader
from .shape import Shape, read_llama_like


def read_gemma_norm(reader: ConfigReader) -> Norm:
    """RMSNorm by 1 + weight."""
    return Norm(reader.take("rms_norm_eps", float, 1e-6), plus_one=True)


def read_gemma_like(
    reader: ConfigReader, shape: Shape, *, family: str, norm: Norm, **changes: Any
) -> ModelConfig:
    """The keys of all Gemmas; `changes` are fields of ModelConfig, blocks among them."""
    reader.only("use_bidirectional_attention", False)
    reader.take("cache_implementation", str, None)  # how transformers keeps its cache
    attention_bias = reader.take("attention_bias", bool, False)
    return read_llama_like(
        reader,
        shape,
        family=family,
        tied=True,
        norm=norm,
        activation=_read_activation(reader, family),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        embedding_multiplier=shape.hidden_size**0.5,
        **changes,
    )


def _read_activation(reader: ConfigReader, family: str) -> str:
    """Under one of two keys, or the same under both.

    The first Gemma's `hidden_act` "gelu" always meant the approximation by tanh.
    """
    old, new = (reader.take(key, str, None) for key in ("hidden_act", "hidden_activation"))
    if family == "gemma" and old == "gelu":
        old = "gelu_pytorch_tanh"
    found = {name for name in (old, new) if name} or {"gelu_pytorch_tanh"}
    if unknown := sorted(found - ACTIVATIONS.keys()):
        known = ", ".join(sorted(ACTIVATIONS))
        raise InputError(f"config.json has activation {unknown[0]!r}; Pippin implements {known}")
    functions = {ACTIVATIONS[name] for name in found}
    if len(functions) > 1:
        raise InputError(
            f"config.json has hidden_act {old!r} and hidden_activation {new!r}; "
            "make them agree or remove one"
        )
    return functions.pop()
