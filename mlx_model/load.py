"""From a checkpoint to a decoder with its weights in place."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..runtime.errors import InputError
from .checkpoints.checkpoint import Checkpoint
from .config import ModelConfig
from .decoder import Decoder
from .families import read_family
from .families.common.weights import drop

_TIED_HEAD = "lm_head."
_TABLE = "model.embed_tokens."
_NAMES_SHOWN = 3


def load_decoder(checkpoint: Checkpoint, dtype: mx.Dtype | None = None) -> Decoder:
    """Build the decoder and give it the checkpoint's weights; nothing is evaluated yet.

    `dtype` is what floating-point parameters are cast to; None keeps the checkpoint's.
    Raises InputError for missing, extra or wrongly shaped weights, and as `read_family` does.
    """
    family = read_family(checkpoint.config)
    weights = drop(checkpoint.load_weights(), r".*rotary_emb\.inv_freq")
    weights = family.convert(weights, family.config)
    config = _settle_head(family.config, weights)
    decoder = Decoder(config)
    _quantize_like(decoder, weights, checkpoint.config.get("quantization") or {})
    _check(decoder, weights)
    if dtype is not None:
        weights = {n: w.astype(dtype) if _is_float(w) else w for n, w in weights.items()}
    decoder.load_weights(list(weights.items()))
    decoder.eval()
    return decoder


def _settle_head(config: ModelConfig, weights: dict[str, mx.array]) -> ModelConfig:
    """Some checkpoints call the head tied and still store one: a different one is used."""
    if not config.tie_embeddings:
        return config
    stored = {n: w for n, w in weights.items() if n.startswith(_TIED_HEAD)}
    if not stored:
        return config
    if all(_equal(w, weights.get(n.replace(_TIED_HEAD, _TABLE))) for n, w in stored.items()):
        for name in stored:
            del weights[name]
        return config
    return replace(config, tie_embeddings=False)


def _equal(a: mx.array, b: mx.array | None) -> bool:
    return b is not None and a.shape == b.shape and bool(mx.array_equal(a, b))


def _quantize_like(
    decoder: Decoder, weights: dict[str, mx.array], settings: dict[str, Any]
) -> None:
    """Make each layer whose scales are stored a quantized one, bits and group by its shapes."""
    mode = settings.get("mode", "affine")
    if mode != "affine":
        raise InputError(
            f"config.json has quantization mode {mode!r}; Pippin reads MLX's 'affine' only"
        )

    def bits_and_group(path: str, module: nn.Module) -> dict[str, int] | bool:
        scales = weights.get(f"{path}.scales")
        if scales is None or not hasattr(module, "to_quantized"):
            return False
        packed, width = weights[f"{path}.weight"], module.weight.shape[-1]
        group_size = width // max(scales.shape[-1], 1)
        bits = 32 * packed.shape[-1] // width
        if bits not in (2, 3, 4, 5, 6, 8) or group_size not in (32, 64, 128):
            raise InputError(
                f"the checkpoint's {path} looks like {bits}-bit weights in groups of {group_size}; "
                "MLX has 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
            )
        return {"bits": bits, "group_size": group_size}

    nn.quantize(decoder, class_predicate=bits_and_group)


def _check(decoder: Decoder, weights: dict[str, mx.array]) -> None:
    """Raise InputError unless the names and shapes are exactly the decoder's."""
    wanted = dict(tree_flatten(decoder.parameters()))
    missing = sorted(wanted.keys() - weights.keys())
    extra = sorted(weights.keys() - wanted.keys())
    if missing:
        raise InputError(f"the checkpoint lacks {_some(missing)}, which its config.json calls for")
    if extra:
        raise InputError(
            f"the checkpoint has {_some(extra)}, which its config.json has no place for"
        )
    for name, array in wanted.items():
        if weights[name].shape != array.shape:
            raise InputError(
                f"the checkpoint's {name} has shape {list(weights[name].shape)}; "
                f"its config.json calls for {list(array.shape)}"
            )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _is_float(array: mx.array) -> bool:
    return mx.issubdtype(array.dtype, mx.floating)
