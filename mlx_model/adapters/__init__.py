"""LoRA and DoRA adapters, in PEFT's and mlx-lm's formats, fused into a checkpoint's weights.

An adapter names the checkpoint's own tensors, so it is fused before any family translates them.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint


def with_adapter(checkpoint: "Checkpoint", folder: Path) -> "Checkpoint":
    """The checkpoint whose `load_weights` gives weights with the adapter in `folder` fused in.

    Its fingerprint differs from the checkpoint's, and from that with any other adapter. Raises
    InputError as `read_adapter` does; `load_weights` then raises InputError when the adapter does
    not fit the checkpoint.
    """
    from .read import read_adapter

    adapter = read_adapter(folder)
    config = _without_formats(checkpoint.config, adapter.layers)
    both = f"{checkpoint.fingerprint}\0{adapter.digest}"
    fingerprint = hashlib.sha256(both.encode()).hexdigest()[:16]
    return replace(checkpoint, config=config, adapter=adapter, fingerprint=fingerprint)


def _without_formats(config: dict[str, Any], layers: set[str]) -> dict[str, Any]:
    """The config without what its quantization says of `layers`, which will be unquantized."""
    from .names import same_layer

    changed = dict(config)
    for key in ("quantization", "quantization_config"):
        if isinstance(settings := config.get(key), dict):
            changed[key] = {
                path: value
                for path, value in settings.items()
                if not any(same_layer(path, layer) for layer in layers)
            }
    return changed
