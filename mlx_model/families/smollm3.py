"""SmolLM3: Llama whose every fourth layer is not told positions (NoPE, arXiv:2501.18795)."""

from ...runtime.errors import InputError
from ..config import BlockConfig, ModelConfig
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import Shape, read_layer_types, read_llama_like, read_shape
from .common.windows import FULL, SLIDING, windows_of


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a SmolLM3 config.json."""
    shape = read_shape(reader, context=32768, kv_heads=4)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context, base=2000000.0))
    turns = _read_turns(reader, shape.layers)
    windows = _read_windows(reader, shape, turns)
    attention_bias = reader.take("attention_bias", bool, False)
    return read_llama_like(
        reader,
        shape,
        family="smollm3",
        tied=True,
        blocks=tuple(
            BlockConfig(rope if turn else None, window)
            for turn, window in zip(turns, windows, strict=True)
        ),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.take("mlp_bias", bool, False),
    )


def _read_turns(reader: ConfigReader, layers: int) -> list[bool]:
    """Which layers have RoPE: 1 in `no_rope_layers`, or all but each `no_rope_layer_interval`th."""
    interval = reader.positive("no_rope_layer_interval", 4)
    turns = reader.take("no_rope_layers", list, None)
    if turns is None:
        turns = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if len(turns) < layers or any(turn not in (0, 1) for turn in turns):
        raise InputError(
            f"config.json has no_rope_layers {turns!r}; expected 0 or 1 for each of {layers} layers"
        )
    return [bool(turn) for turn in turns[:layers]]


def _read_windows(reader: ConfigReader, shape: Shape, turns: list[bool]) -> list[int | None]:
    """By default the layers without RoPE slide, where windows are used."""
    sliding = reader.take("use_sliding_window", bool, False)
    window = reader.take("sliding_window", int, None)
    reader.take("max_window_layers", int, None)  # stored by some, read by none
    window = window if sliding else None
    default = [SLIDING if window and not turn else FULL for turn in turns]
    kinds = read_layer_types(reader, shape.layers, default, (FULL, SLIDING))
    return windows_of(kinds, window, shape.context)
