"""Gemma 3: five layers with a window and a rotation of their own to one without (2503.19786)."""

from ...runtime.errors import InputError
from ..config import BlockConfig, HeadNorm, ModelConfig
from ..positions import RopeConfig
from .common.gemma import read_gemma_like, read_gemma_norm
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import Shape, read_layer_types, read_shape
from .common.windows import FULL, SLIDING, windows_of


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Gemma 3 config.json, or the text_config of one that also sees."""
    shape = read_shape(reader, context=131072, kv_heads=4, head_dim=256)
    ropes = _read_ropes(reader, shape)
    window = reader.take("sliding_window", int, None if reader.has("sliding_window") else 4096)
    kinds = _read_kinds(reader, shape.layers)
    windows = windows_of(kinds, window, shape.context)
    norm = read_gemma_norm(reader)
    reader.only("attn_logit_softcapping")
    return read_gemma_like(
        reader,
        shape,
        family="gemma3_text",
        norm=norm,
        head_norm=HeadNorm(norm),
        blocks=tuple(
            BlockConfig(ropes[kind], window) for kind, window in zip(kinds, windows, strict=True)
        ),
        placement="sandwich",
        scale=reader.positive("query_pre_attn_scalar", 256) ** -0.5,
        logit_softcap=reader.take("final_logit_softcapping", float, None),
    )


def _read_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """By `layer_types`, or each so-manyth layer without a window, under one of two keys."""
    old, new = (
        reader.positive(key, None) for key in ("sliding_window_pattern", "_sliding_window_pattern")
    )
    period = old or new or 6
    default = [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]
    return read_layer_types(reader, layers, default, (FULL, SLIDING))


def _read_ropes(reader: ConfigReader, shape: Shape) -> dict[str, RopeConfig]:
    """A rotation for each layer type: nested, or in the flat keys of older configs.

    There `rope_theta` and `rope_scaling` are those of the layers without a window, and
    `rope_local_base_freq` is the base of the others.
    """
    nested = reader.take("rope_parameters", dict, {})
    if extra := sorted(nested.keys() - {FULL, SLIDING}):
        raise InputError(
            f"config.json's rope_parameters have {extra[0]!r}; "
            f"expected one dict for {FULL!r} and one for {SLIDING!r}"
        )
    flat = {
        FULL: {
            "rope_theta": reader.take("rope_theta", float, 1000000.0),
            "rope_scaling": reader.take("rope_scaling", dict, None),
        },
        SLIDING: {"rope_theta": reader.take("rope_local_base_freq", float, 10000.0)},
    }
    defaults = RopeDefaults(shape.head_dim, shape.context)
    return {
        kind: read_rope(ConfigReader({**keys, "rope_parameters": nested.get(kind)}), defaults)
        for kind, keys in flat.items()
    }
