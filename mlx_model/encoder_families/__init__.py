"""Families of encoders and of encoder-decoders: config.json and weights in our terms.

A family is one module, named after its model_type, with `read_config(reader)`, which gives an
EncoderConfig or a Seq2SeqConfig, and `convert(weights, config)`, which gives the weights under the
names of `encoder.py` or `seq2seq.py`.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...runtime.errors import InputError
from ..encoder_config import EncoderConfig, Seq2SeqConfig
from ..families.common.reader import ConfigReader

if TYPE_CHECKING:
    from ..families.common.weights import Weights

StackedConfig = EncoderConfig | Seq2SeqConfig


@dataclass(frozen=True)
class EncoderFamily:
    """What one architecture needs: its config in our terms, its weights in our terms."""

    config: StackedConfig
    convert: Callable[["Weights", StackedConfig], "Weights"]


def encoder_model_types() -> list[str]:
    """All model_types with an encoder that Pippin implements."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(module.name for module in modules if module.name != "common")


def has_encoder(config: dict[str, Any]) -> bool:
    """Whether `config` (a config.json) is of one of these families."""
    return config.get("model_type") in encoder_model_types()


def is_encoder(config: dict[str, Any]) -> bool:
    """Whether it is of an encoder that stands alone.

    Raises InputError for values that are not implemented.
    """
    if not has_encoder(config):
        return False
    return isinstance(_module(config).read_config(ConfigReader(config)), EncoderConfig)


def read_encoder_family(config: dict[str, Any]) -> EncoderFamily:
    """Translate `config` (a config.json).

    Raises InputError for an unknown model_type and, by name, for keys that are not implemented.
    """
    from ..families import refuse_foreign_quantization

    if not has_encoder(config):
        raise InputError(
            f"config.json has model_type {config.get('model_type')!r}, which is no encoder; "
            f"Pippin implements {', '.join(encoder_model_types())}"
        )
    module = _module(config)
    reader = ConfigReader(config)
    refuse_foreign_quantization(reader, ())
    read = module.read_config(reader)
    reader.finish()
    return EncoderFamily(read, module.convert)


def _module(config: dict[str, Any]) -> Any:
    return import_module(f".{config['model_type']}", __name__)
