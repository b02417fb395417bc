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


# Known, and refused: keys and values are made from a latent vector (MLA, arXiv:2405.04434).
_LATENT = ("deepseek_v2", "deepseek_v3")


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
    if model_type in _LATENT:
        raise InputError(
            f"config.json has model_type {model_type!r}, whose multi-head latent attention Pippin "
            "does not implement; docs/models.md says what it would take"
        )
    if model_type not in known:
        _refuse_encoder(config)
        near = get_close_matches(str(model_type), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(
            f"config.json has model_type {model_type!r}{hint}; Pippin implements {', '.join(known)}"
        )
    module = import_module(f".{model_type}", __name__)
    reader = ConfigReader(config)
    refuse_foreign_quantization(reader, getattr(module, "QUANT_METHODS", ()))
    read = module.read_config(reader)
    reader.finish()
    return Family(read, getattr(module, "convert", _unchanged))


def _refuse_encoder(config: dict[str, Any]) -> None:
    """Say which command runs a model of another kind."""
    from ..encoder_families import has_encoder  # whose configs are read by this package's reader

    if has_encoder(config):
        raise InputError(
            f"config.json has model_type {config['model_type']!r}, which is no decoder alone; "
            "`pippin embed` runs encoders, `pippin generate` encoder-decoders"
        )


def _unchanged(weights: "Weights", config: ModelConfig) -> "Weights":
    return weights


def refuse_foreign_quantization(reader: ConfigReader, known: tuple[str, ...]) -> None:
    """MLX writes its settings under both keys; anything else under the second is not ours.

    `known`: methods that the family reads.
    """
    ours = reader.take("quantization", dict, None)
    theirs = reader.take("quantization_config", dict, None)
    if theirs is not None and theirs != ours and "group_size" not in theirs:
        method = theirs.get("quant_method", "unnamed")
        if method in known:
            return
        raise InputError(
            f"config.json has quantization_config with method {method!r}; Pippin reads MLX's "
            "quantization, GGUF and unquantized safetensors"
        )
