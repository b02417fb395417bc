"""Quantized checkpoints for tests, and mlx-lm to judge them."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.decoder import Decoder
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.quantized_layers import FLOAT_MODES, Format

# Rows of 128 and 256, which every group divides.
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
FORMATS = [
    *(Format(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    *FLOAT_MODES.values(),
]


def name_of(format_: Format) -> str:
    """A test's id."""
    return f"{format_.mode}-{format_.bits}-{format_.group_size}"


def tensors(folder: Path) -> dict[str, mx.array]:
    """All tensors of a folder's files."""
    found: dict[str, mx.array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= mx.load(str(file))
    return found


def load(folder: Path) -> Decoder:
    return load_decoder(open_checkpoint(folder), mx.float32)


def mlx_lm_logits(folder: Path, ids: list[int]) -> np.ndarray:
    """What mlx-lm makes of a folder, in float32, [L, V]."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def mlx_lm_convert(source: Path, out: Path, **options) -> Path:
    """Quantize with mlx-lm itself."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    recipe = options.pop("recipe", None)
    model, config = load_model(source, lazy=True)
    predicate = None
    if recipe:
        from mlx_lm.convert import mixed_quant_predicate_builder

        predicate = mixed_quant_predicate_builder(recipe, model, options["group_size"])
    model, config = quantize_model(model, config, quant_predicate=predicate, **options)
    save_model(out, model)
    save_config(config, out / "config.json")
    return out


def dequantized(folder: Path, decoder: nn.Module) -> dict[str, np.ndarray]:
    """The folder's weights in float32 by name, by `mx.dequantize`; formats as the decoder has."""
    stored = tensors(folder)
    modules = dict(decoder.named_modules())
    dense = {}
    for name, array in stored.items():
        stem, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases"):
            continue
        if leaf == "weight" and f"{stem}.scales" in stored:
            module = modules[stem]
            parts = [array, stored[f"{stem}.scales"]]
            parts += [stored[f"{stem}.biases"]] if f"{stem}.biases" in stored else []
            array = mx.dequantize(
                *parts,
                group_size=module.group_size,
                bits=module.bits,
                mode=module.mode,
                dtype=mx.float32,
            )
        dense[name] = np.array(array.astype(mx.float32))
    return dense
