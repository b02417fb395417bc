"""`export_checkpoint`: a checkpoint becomes a folder, whatever kind of model it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.encoder_families import has_encoder, is_encoder
from ..runtime.errors import InputError

# Options that only decoders have, and what an encoder has in their place.
_OF_DECODERS = {"kv": None, "target": "cpu", "sampling": False}


def export_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: str | Sequence[str] | None = None,
    **options: Any,
) -> Path:
    """Export to the folder `out`, which is returned.

    `weights`, `options`, and errors, are those of `folder.export_folder`; without `weights`, an
    encoder is exported in fp32.
    """
    if not has_encoder(checkpoint.config):
        from .folder import export_folder

        return export_folder(checkpoint, out, weights=weights, **options)
    if is_encoder(checkpoint.config):
        from .encoder_folder import export_encoder as export
    else:
        from .seq2seq_folder import export_seq2seq as export
    for name, default in _OF_DECODERS.items():
        if options.pop(name, default) != default:
            raise InputError(f"the model has an encoder, and {name} is for decoders; leave it out")
    if not isinstance(weights, str | None):
        if len(weights) > 1:
            raise InputError("the model has an encoder, of which one kind of weights is exported")
        weights = weights[0]
    return export(checkpoint, out, weights=weights, **options)
