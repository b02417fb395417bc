"""From a checkpoint to a decoder with its weights in place."""

from dataclasses import replace
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..runtime.errors import InputError
from .checkpoints.checkpoint import Checkpoint
from .config import ModelConfig
from .decoder import Decoder
from .encoder_config import Seq2SeqConfig
from .families import read_family
from .families.common.weights import drop
from .quantized_layers import quantize_like, settle_tables

DERIVED = r".*rotary_emb\.inv_freq"  # tensors that follow from the config
_TIED_HEAD = "lm_head."
_TABLE = "model.embed_tokens."
_NAMES_SHOWN = 3

Config = TypeVar("Config", ModelConfig, Seq2SeqConfig)


def load_decoder(checkpoint: Checkpoint, dtype: mx.Dtype | None = None) -> Decoder:
    """Build the decoder and give it the checkpoint's weights; nothing is evaluated yet.

    `dtype` is what floating-point parameters are cast to; None keeps the checkpoint's.
    Raises InputError for missing, extra or wrongly shaped weights, and as `read_family` does.
    """
    decoder, weights = match_weights(checkpoint)
    fill(decoder, weights, dtype)
    return decoder


def fill(model: nn.Module, weights: dict[str, mx.array], dtype: mx.Dtype | None) -> None:
    """Give `model` weights that fit it, floating-point ones cast to `dtype` if there is one."""
    if dtype is not None:
        weights = {n: w.astype(dtype) if _is_float(w) else w for n, w in weights.items()}
    model.load_weights(list(weights.items()))
    settle_tables(model)
    model.eval()


def match_weights(checkpoint: Checkpoint) -> tuple[Decoder, dict[str, mx.array]]:
    """The decoder without weights, and the weights that fit it, under its names.

    Its layers are quantized as the checkpoint's are. Raises InputError as `load_decoder` does.
    """
    family = read_family(checkpoint.config)
    weights = drop(checkpoint.load_weights(), DERIVED)
    weights = family.convert(weights, family.config)
    config = settle_head(family.config, weights, _TABLE)
    decoder = Decoder(config)
    quantize_like(decoder, weights, checkpoint.config.get("quantization") or {})
    check_weights(decoder, weights)
    return decoder, weights


def settle_head(config: Config, weights: dict[str, mx.array], table: str) -> Config:
    """Some checkpoints call the head tied and still store one: a different one is used.

    `table` is what the names of the embedding's arrays begin with; a head that equals it is taken
    out of `weights`.
    """
    if not config.tie_embeddings:
        return config
    stored = {n: w for n, w in weights.items() if n.startswith(_TIED_HEAD)}
    if not stored:
        return config
    if all(_equal(w, weights.get(n.replace(_TIED_HEAD, table))) for n, w in stored.items()):
        for name in stored:
            del weights[name]
        return config
    return replace(config, tie_embeddings=False)


def _equal(a: mx.array, b: mx.array | None) -> bool:
    return b is not None and a.shape == b.shape and bool(mx.array_equal(a, b))


def check_weights(model: nn.Module, weights: dict[str, mx.array]) -> None:
    """Raise InputError unless the names and shapes are exactly the model's."""
    wanted = dict(tree_flatten(model.parameters()))
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
