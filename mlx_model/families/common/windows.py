"""Sliding windows in some of the layers, as the families spell them."""

from ....runtime.errors import InputError
from .reader import ConfigReader
from .shape import inside, read_layer_types

FULL, SLIDING = "full_attention", "sliding_attention"


def windows_of(kinds: list[str], window: int | None, context: int) -> list[int | None]:
    """The window of each layer by its layer type, tokens.

    Raises InputError where a layer slides and no window is stated.
    """
    if window is None and SLIDING in kinds:
        raise InputError(
            f"config.json has layers of type {SLIDING!r} and no sliding_window; state its tokens"
        )
    return [inside(window, context) if kind == SLIDING else None for kind in kinds]


def read_upper_windows(reader: ConfigReader, layers: int, context: int) -> list[int | None]:
    """Qwen's spelling: a switch, and the first layer that slides unless `layer_types` says so."""
    sliding = reader.take("use_sliding_window", bool, False)
    window = reader.take("sliding_window", int, None if reader.has("sliding_window") else 4096)
    first = reader.take("max_window_layers", int, 28)
    window = window if sliding else None
    default = [SLIDING if window and layer >= first else FULL for layer in range(layers)]
    kinds = read_layer_types(reader, layers, default, (FULL, SLIDING))
    return windows_of(kinds, window, context)
