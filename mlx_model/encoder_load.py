"""From a checkpoint to an encoder, or an encoder-decoder, with its weights in place."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn

from ..runtime.errors import InputError
from .checkpoints.checkpoint import Checkpoint
from .encoder import Encoder
from .encoder_config import EncoderConfig, Seq2SeqConfig
from .encoder_families import read_encoder_family
from .load import check_weights, fill, settle_head
from .quantized_layers import quantize_like
from .seq2seq import Seq2Seq

_TABLE = "shared."


def load_encoder(checkpoint: Checkpoint, dtype: mx.Dtype | None = None) -> Encoder:
    """Build the encoder and give it the checkpoint's weights; nothing is evaluated yet.

    `dtype` is what floating-point parameters are cast to; None keeps the checkpoint's. Raises
    InputError for another kind of model, missing, extra or wrongly shaped weights, and as
    `read_encoder_family` does.
    """
    family = read_encoder_family(checkpoint.config)
    if not isinstance(family.config, EncoderConfig):
        raise InputError(
            f"a {family.config.family} writes text, it makes no vectors; use `pippin generate`"
        )
    weights = family.convert(checkpoint.load_weights(), family.config)
    return _filled(Encoder(family.config), weights, checkpoint, dtype)


def load_seq2seq(checkpoint: Checkpoint, dtype: mx.Dtype | None = None) -> Seq2Seq:
    """Likewise for an encoder-decoder."""
    family = read_encoder_family(checkpoint.config)
    if not isinstance(family.config, Seq2SeqConfig):
        raise InputError(
            f"a {family.config.family} makes vectors, it writes no text; use `pippin embed`"
        )
    weights = family.convert(checkpoint.load_weights(), family.config)
    config = settle_head(family.config, weights, _TABLE)
    start = checkpoint.generation_config.get("decoder_start_token_id", config.start_token)
    if not isinstance(start, int) or not 0 <= start < config.vocab_size:
        raise InputError(
            f"generation_config.json has decoder_start_token_id = {start!r}; expected a token id"
        )
    return _filled(Seq2Seq(replace(config, start_token=start)), weights, checkpoint, dtype)


def _filled(
    model: nn.Module,
    weights: dict[str, mx.array],
    checkpoint: Checkpoint,
    dtype: mx.Dtype | None,
) -> nn.Module:
    quantize_like(model, weights, checkpoint.config.get("quantization") or {})
    check_weights(model, weights)
    fill(model, weights, dtype)
    return model
