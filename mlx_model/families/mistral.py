"""Mistral models whose attention sees the whole context."""

from ...runtime.errors import InputError
from ..config import ModelConfig
from .llama import read_llama_like
from .reader import ConfigReader

_DEFAULT_CONTEXT = 131072  # what an absent key means in transformers, tokens
_DEFAULT_WINDOW = 4096  # likewise; a null window means none


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Mistral config.json; a sliding window inside the context is refused."""
    absent = not reader.has("sliding_window")
    window = reader.take("sliding_window", int, _DEFAULT_WINDOW if absent else None)
    read = read_llama_like(reader, family="mistral", default_context=_DEFAULT_CONTEXT)
    if window is not None and window < read.context:
        raise InputError(
            f"config.json has sliding_window = {window} in a context of {read.context}; "
            "Pippin implements Mistral without a window only"
        )
    return read
