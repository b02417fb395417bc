"""Families: each translates one architecture's config.json and weight names into ours.

A family is one module with `read_config(reader) -> ModelConfig` and, where its weight names are
not Llama's, `rename(name) -> name`. `_MODULES` lists them by model_type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from ...runtime.errors import InputError
from ..config import ModelConfig
from .reader import ConfigReader

_MODULES = {"llama": "llama", "mistral": "mistral"}


@dataclass(frozen=True)
class Family:
    """What one architecture needs: its config in our terms, its weight names in our terms."""

    config: ModelConfig
    rename: Callable[[str], str]


def read_family(config: dict[str, Any]) -> Family:
    """Translate `config` (a config.json).

    Raises InputError for an unknown model_type and, by name, for keys that are not implemented.
    """
    model_type = config.get("model_type")
    if model_type not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        near = get_close_matches(str(model_type), _MODULES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(
            f"config.json has model_type {model_type!r}{hint}; Pippin implements {known}"
        )
    module = import_module(f".{_MODULES[model_type]}", __name__)
    reader = ConfigReader(config)
    _refuse_foreign_quantization(reader)
    read = module.read_config(reader)
    reader.finish()
    return Family(read, getattr(module, "rename", str))


def _refuse_foreign_quantization(reader: ConfigReader) -> None:
    """MLX writes its settings under both keys; anything else under the second is not ours."""
    ours = reader.take("quantization", dict, None)
    theirs = reader.take("quantization_config", dict, None)
    if theirs is not None and theirs != ours and "group_size" not in theirs:
        method = theirs.get("quant_method", "unnamed")
        raise InputError(
            f"config.json has quantization_config with method {method!r}; Pippin reads MLX's "
            "affine quantization, GGUF and unquantized safetensors"
        )
