"""Families: each translates one architecture's config.json and weights into ours.

A family is one module, named after its model_type, with `read_config(reader) -> ModelConfig` and,
where the checkpoint's tensors are not named and laid out as `decoder.py` has them,
`convert(weights, config) -> weights` (see `common/weights.py`).
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...runtime.errors import InputError
from ..config import ModelConfig
from .common.reader import ConfigReader

if TYPE_CHECKING:
    from .common.weights import Weights


@dataclass(frozen=True)
class Family:
    """What one architecture needs: its config in our terms, its weights in our terms."""

    config: ModelConfig
    convert: Callable[["Weights", ModelConfig], "Weights"]


def model_types() -> list[str]:
    """All model_types that Pippin implements."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(module.name for module in modules if not module.ispkg)


def read_family(config: dict[str, Any]) -> Family:
    """Translate `config` (a config.json).

    Raises InputError for an unknown model_type and, by name, for keys that are not implemented.
    """
    model_type, known = config.get("model_type"), model_types()
    if model_type not in known:
        near = get_close_matches(str(model_type), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(
            f"config.json has model_type {model_type!r}{hint}; Pippin implements {', '.join(known)}"
        )
    module = import_module(f".{model_type}", __name__)
    reader = ConfigReader(config)
    _refuse_foreign_quantization(reader)
    read = module.read_config(reader)
    reader.finish()
    return Family(read, getattr(module, "convert", _unchanged))


def _unchanged(weights: "Weights", config: ModelConfig) -> "Weights":
    return weights


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
