"""A GGUF's RoPE settings, in the terms of config.json."""

from typing import Any

import numpy as np

from ...runtime.errors import InputError
from .gguf import GGUFFile
from .gguf_keys import Keys

FACTORS = "rope_freqs.weight"  # what each frequency is divided by, at every length
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


def read_rope_scaling(file: GGUFFile, keys: Keys, context: int) -> dict[str, Any] | None:
    """`rope_scaling`; `context` is what the model states, tokens.

    Raises InputError, by name, for settings that contradict each other or are not implemented.
    """
    factor = keys.real("rope.scaling.factor", 0.0) or keys.real("rope.scale_linear", 0.0) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    if LONG_FACTORS in file.tensors:
        return _longrope(file, keys, kind)
    original = keys.number("rope.scaling.original_context_length", context)
    keys.only("rope.scaling.attn_factor", 1.0)
    scaled = kind != "none" and factor != 1.0
    if FACTORS in file.tensors:
        if scaled:
            raise InputError(f"{file.path} has {kind} RoPE scaling and {FACTORS} at once")
        return {"rope_type": "custom", "factors": _read_factors(file, FACTORS)}
    if not scaled:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for ours, theirs in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if beta := keys.real(f"rope.scaling.{ours}", 0.0):
                scaling[theirs] = beta
    return scaling


def _longrope(file: GGUFFile, keys: Keys, kind: str) -> dict[str, Any]:
    """Factors for two ranges of length (arXiv:2402.13753); the scale follows unless stated."""
    if kind not in {"longrope", "linear", "none"} or FACTORS in file.tensors:
        raise InputError(f"{file.path} has {LONG_FACTORS} and another RoPE scaling at once")
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": _read_factors(file, SHORT_FACTORS),
        "long_factor": _read_factors(file, LONG_FACTORS),
    }
    if magnitude := keys.real("rope.scaling.attn_factor", 0.0):
        scaling["attention_factor"] = magnitude
    return scaling


def _read_factors(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise InputError(f"{file.path} has no tensor {name!r}; it is incomplete")
    if tensor.type != "F32":
        raise InputError(f"{file.path} has {name} in {tensor.type}, expected F32")
    return file.raw(tensor).view(np.float32).ravel().tolist()
