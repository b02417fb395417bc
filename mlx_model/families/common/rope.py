"""Every public spelling of RoPE settings, translated into RopeConfig.

`rope_theta` beside `rope_scaling` with "type", "rope_type" or both (older configs), or all of it
in `rope_parameters` (newer ones), flat or one dict a layer type; the inner value wins, as in
transformers.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ....runtime.errors import InputError
from ...positions import RopeConfig
from .reader import ConfigReader

_WHERE = "config.json's RoPE settings"


@dataclass(frozen=True)
class RopeDefaults:
    """What a family says of RoPE where its config.json says nothing."""

    head_dim: int  # D
    context: int  # tokens
    base: float = 10000.0
    partial: float = 1.0  # the part of a head that turns
    partly: bool = False  # the family has heads that turn in part only
    interleaved: bool = False
    original_context: int | None = None  # stated beside the settings (Phi-3)
    trained: int | None = None  # the context as it is stated, where that is not `context`


def read_rope(reader: ConfigReader, defaults: RopeDefaults) -> RopeConfig:
    """Read the RoPE keys of `reader`.

    Raises InputError for an unknown type, by name, and for settings that contradict each other.
    """
    settings, defaults = _settings(reader, defaults)
    return _read(settings, defaults)


def read_layer_ropes(
    reader: ConfigReader, defaults: RopeDefaults, kinds: Iterable[str]
) -> dict[str, RopeConfig]:
    """One RopeConfig for each of the layer types `kinds`; flat settings hold for all of them."""
    settings, defaults = _settings(reader, defaults)
    nested = {key: value for key, value in settings.items() if isinstance(value, dict)}
    if not nested:
        return {kind: _read(dict(settings), defaults) for kind in kinds}
    kinds = set(kinds)
    if missing := sorted(kinds - nested.keys()):
        raise InputError(f"{_WHERE} lack {missing[0]!r}, a layer type of this model")
    known = {*kinds, "full_attention", "sliding_attention"}
    if extra := sorted(settings.keys() - known):
        raise InputError(f"{_WHERE} have {extra[0]!r}, which is no layer type of this model")
    return {kind: _read(nested[kind], defaults) for kind in kinds}


def stretched_context(reader: ConfigReader, context: int) -> int:
    """The longest sequence, tokens, of a config that states `context`.

    YaRN and dynamic NTK are switched on by their settings alone, with the trained context left
    where it stood; they reach `factor` times as far (arXiv:2309.00071).
    """
    for key in ("rope_scaling", "rope_parameters"):
        settings = reader.peek(key)
        if not isinstance(settings, dict):
            continue
        names, factor = (settings.get("rope_type"), settings.get("type")), settings.get("factor")
        trained = settings.get("original_max_position_embeddings")
        trained = context if "dynamic" in names else trained
        if {"yarn", "dynamic"} & set(names) and isinstance(factor, int | float):
            return max(context, int(factor * (trained if isinstance(trained, int) else 0)))
    return context


def _settings(reader: ConfigReader, defaults: RopeDefaults) -> tuple[dict[str, Any], RopeDefaults]:
    defaults = replace(
        defaults,
        base=reader.take("rope_theta", float, defaults.base),
        partial=reader.take("partial_rotary_factor", float, defaults.partial),
    )
    reader.only("rope_interleaved", defaults.interleaved)
    if isinstance(trained := reader.peek("max_position_embeddings"), int):
        defaults = replace(defaults, trained=trained)
    scaling = reader.take("rope_scaling", dict, {})
    return _one_of(scaling, reader.take("rope_parameters", dict, {})), defaults


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


def _read(settings: dict[str, Any], defaults: RopeDefaults) -> RopeConfig:
    inner = ConfigReader(settings, _WHERE)
    partial = inner.take("partial_rotary_factor", float, defaults.partial)
    if partial != 1.0 and not defaults.partly:
        raise InputError(
            f"config.json has partial_rotary_factor {partial}; this architecture turns whole heads"
        )
    dims = int(defaults.head_dim * partial)
    if dims % 2 or not 0 < dims <= defaults.head_dim:
        raise InputError(
            f"config.json turns {dims} of {defaults.head_dim} dimensions of a head; "
            f"RoPE needs an even number from 2 to {defaults.head_dim}"
        )
    rope_type = _rope_type(inner)
    if rope_type not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise InputError(f"config.json has RoPE type {rope_type!r}; Pippin implements {known}")
    rope = RopeConfig(
        base=inner.take("rope_theta", float, defaults.base),
        dims=dims,
        interleaved=defaults.interleaved,
        **_READERS[rope_type](inner, defaults),
    )
    inner.finish()
    if rope.scaling == "dynamic" and dims < 4:
        raise InputError(f"{_WHERE} are dynamic and {dims} dimensions turn; expected at least 4")
    for name, factors in (("factors", rope.factors), ("long factors", rope.long_factors)):
        if factors and len(factors) != dims // 2:
            raise InputError(
                f"{_WHERE} have {len(factors)} {name}; expected {dims // 2}, one a pair"
            )
    return rope


def _rope_type(inner: ConfigReader) -> str:
    """The type under either of its two names; they may not contradict each other."""
    new, old = inner.take("rope_type", str, None), inner.take("type", str, None)
    if new and old and new != old:
        raise InputError(f"config.json has RoPE rope_type {new!r} and type {old!r}; expected one")
    return new or old or "default"


def _default(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    # Written by some exporters beside "default"; without meaning there.
    inner.take("factor", float, None)
    inner.take("original_max_position_embeddings", int, None)
    return {}


def _dynamic(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    """Dynamic NTK turns as plain RoPE does up to the trained length, then slower and slower."""
    trained = defaults.trained or defaults.context
    inner.only("original_max_position_embeddings", trained)
    return {"scaling": "dynamic", "factor": _at_least_one(inner), "switch": trained}


def _linear(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    inner.take("original_max_position_embeddings", int, None)
    return {"scaling": "linear", "factor": _at_least_one(inner)}


def _llama3(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    low = inner.take("low_freq_factor", float)
    high = inner.take("high_freq_factor", float)
    if not 0 < low < high:
        raise InputError(
            f"{_WHERE} have low_freq_factor {low} and high_freq_factor {high}; "
            "expected 0 < low < high"
        )
    return {
        "scaling": "llama3",
        "factor": _at_least_one(inner),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_context": _original_context(inner, defaults),
    }


def _yarn(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    """The magnitude is section 3.4's of arXiv:2309.00071 unless the config states another."""
    original = _original_context(inner, defaults)
    factor = _at_least_one(inner, defaults.context / original)
    magnitude = inner.take("attention_factor", float, None)
    one, all_dims = inner.take("mscale", float, None), inner.take("mscale_all_dim", float, None)
    if magnitude is None:
        both = bool(one and all_dims)
        magnitude = _mscale(factor, one if both else 1.0)
        magnitude /= _mscale(factor, all_dims) if both else 1.0
    return {
        "scaling": "yarn",
        "factor": factor,
        "magnitude": magnitude,
        "original_context": original,
        "beta_fast": inner.take("beta_fast", float, None) or 32.0,
        "beta_slow": inner.take("beta_slow", float, None) or 1.0,
        "truncate": inner.take("truncate", bool, True),
    }


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    """Magnitude as in section 3.2 of arXiv:2402.13753 unless the config states another."""
    original = _original_context(inner, defaults)
    factor = _at_least_one(inner, defaults.context / original)
    magnitude = inner.take("attention_factor", float, None)
    if magnitude is None:
        stretched = factor > 1.0
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if stretched else 1.0
    short, long = (_factors(inner, key) for key in ("short_factor", "long_factor"))
    return {
        "scaling": "custom",
        "factors": short,
        "long_factors": long,
        "switch": original,
        "magnitude": magnitude,
    }


def _custom(inner: ConfigReader, defaults: RopeDefaults) -> dict[str, Any]:
    return {"scaling": "custom", "factors": _factors(inner, "factors")}


def _factors(inner: ConfigReader, key: str) -> tuple[float, ...]:
    return tuple(float(factor) for factor in inner.take(key, list))


def _original_context(inner: ConfigReader, defaults: RopeDefaults) -> int:
    inside = inner.positive("original_max_position_embeddings", None)
    return defaults.original_context or inside or defaults.context


def _at_least_one(inner: ConfigReader, default: float | None = None) -> float:
    factor = inner.take("factor", float, default) if default else inner.take("factor", float)
    if factor < 1.0:
        raise InputError(f"{_WHERE} have factor {factor}; expected at least 1")
    return factor


_READERS: dict[str, Callable[[ConfigReader, RopeDefaults], dict[str, Any]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # Phi-3's first name for it
    "custom": _custom,
}
