"""Every public spelling of RoPE settings, translated into one RopeConfig.

`rope_theta` beside `rope_scaling` with "type", "rope_type" or both (older configs), or all of it
in a flat `rope_parameters` (newer ones); the inner value wins, as in transformers.
"""

from typing import Any

from ...runtime.errors import InputError
from ..positions import RopeConfig
from .reader import ConfigReader

_DEFAULT_BASE = 10000.0


def read_rope(reader: ConfigReader, head_dim: int, context: int) -> RopeConfig:
    """Read the RoPE keys of `reader` for heads of D = head_dim and a context in tokens.

    Raises InputError for an unknown type, by name, and for settings that contradict each other.
    """
    base = reader.take("rope_theta", float, _DEFAULT_BASE)
    reader.only("partial_rotary_factor", 1, 1.0)
    reader.only("rope_interleaved", False)
    settings = _one_of(
        reader.take("rope_scaling", dict, {}), reader.take("rope_parameters", dict, {})
    )
    inner = ConfigReader(settings, "config.json's RoPE settings")
    inner.only("partial_rotary_factor", 1, 1.0)
    common = {"base": inner.take("rope_theta", float, base), "dims": head_dim}
    rope_type = _rope_type(inner)
    if rope_type not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise InputError(f"config.json has RoPE type {rope_type!r}; Pippin implements {known}")
    rope = RopeConfig(**common, **_READERS[rope_type](inner, context))
    inner.finish()
    if rope.factors and len(rope.factors) != head_dim // 2:
        raise InputError(
            f"config.json's RoPE settings have {len(rope.factors)} factors; "
            f"expected {head_dim // 2}, half of head_dim"
        )
    return rope


def _one_of(scaling: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """The one settings dict; two are fine where they agree."""
    if not scaling or not parameters:
        return scaling or parameters
    for key in scaling.keys() & parameters.keys():
        if scaling[key] != parameters[key]:
            raise InputError(
                f"config.json has {key} = {scaling[key]!r} in rope_scaling and "
                f"{parameters[key]!r} in rope_parameters; make them agree or remove one"
            )
    return {**parameters, **scaling}


def _rope_type(inner: ConfigReader) -> str:
    """The type under either of its two names; they may not contradict each other."""
    new, old = inner.take("rope_type", str, None), inner.take("type", str, None)
    if new and old and new != old:
        raise InputError(f"config.json has RoPE rope_type {new!r} and type {old!r}; expected one")
    return new or old or "default"


def _default(inner: ConfigReader, context: int) -> dict[str, Any]:
    # Written by some exporters beside "default"; without meaning there.
    inner.take("factor", float, None)
    inner.take("original_max_position_embeddings", int, None)
    return {}


def _linear(inner: ConfigReader, context: int) -> dict[str, Any]:
    inner.take("original_max_position_embeddings", int, None)
    return {"scaling": "linear", "factor": _at_least_one(inner)}


def _llama3(inner: ConfigReader, context: int) -> dict[str, Any]:
    low = inner.take("low_freq_factor", float)
    high = inner.take("high_freq_factor", float)
    if not 0 < low < high:
        raise InputError(
            f"config.json's RoPE settings have low_freq_factor {low} and high_freq_factor {high}; "
            "expected 0 < low < high"
        )
    return {
        "scaling": "llama3",
        "factor": _at_least_one(inner),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_context": inner.positive("original_max_position_embeddings", context),
    }


def _custom(inner: ConfigReader, context: int) -> dict[str, Any]:
    factors = inner.take("factors", list)
    return {"scaling": "custom", "factors": tuple(float(f) for f in factors)}


def _at_least_one(inner: ConfigReader) -> float:
    factor = inner.take("factor", float)
    if factor < 1.0:
        raise InputError(f"config.json's RoPE settings have factor {factor}; expected at least 1")
    return factor


_READERS = {"default": _default, "linear": _linear, "llama3": _llama3, "custom": _custom}
