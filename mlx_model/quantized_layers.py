"""Reading MLX's quantized weights: which layers are quantized, and how.

A quantized layer X is stored as X.weight (uint32), X.scales and, in the mode affine, X.biases.
Its bits, group and mode follow from these and the layer's width. config.json's `quantization`
says the same: `group_size`, `bits` and `mode` of most layers, and for the others, by path, a
dict of their own or `false` for one that was left in floating point.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..runtime.errors import InputError

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class Format:
    """How a weight is quantized; the defaults are MLX's."""

    bits: int = 4  # of a code
    group_size: int = 64  # columns that share a scale
    mode: str = "affine"

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.mode} weights in groups of {self.group_size}"


_DEFAULT = Format()  # what MLX takes where nothing is said
# The floating-point modes: codes in E2M1 or E4M3, scales in E8M0 (the OCP microscaling formats,
# MX v1.0) or, for nvfp4, in E4M3.
FLOAT_MODES = {
    "mxfp4": Format(4, 32, "mxfp4"),
    "nvfp4": Format(4, 16, "nvfp4"),
    "mxfp8": Format(8, 32, "mxfp8"),
}
MODES = ("affine", *FLOAT_MODES)


def quantize_like(
    decoder: nn.Module, weights: dict[str, mx.array], settings: dict[str, Any]
) -> None:
    """Make each layer of `decoder` whose scales are in `weights` a quantized one, in place.

    `weights` are under the decoder's names, `settings` is config.json's `quantization`. The
    settings of most layers are a default only; what is said of one layer must be true of it.
    Raises InputError, by name, where shapes fit no format of MLX's or not what is said of the
    layer, and for settings that mean something else.
    """
    said = _read(settings)

    def choose(path: str, module: nn.Module) -> dict[str, Any] | bool:
        stored = None
        if f"{path}.scales" in weights and hasattr(module, "to_quantized"):
            stored = stored_format(path, weights, module.weight.shape[-1])
        if path in said and said[path] != stored:
            raise InputError(
                f"config.json calls {path} {said[path] or 'unquantized'}, the checkpoint has "
                f"{stored or 'floating-point weights'}; one of the two is wrong"
            )
        return asdict(stored) if stored else False

    nn.quantize(decoder, class_predicate=choose)
    tables = [(p, m) for p, m in decoder.named_modules() if isinstance(m, nn.QuantizedEmbedding)]
    float_tables = [
        (path, FloatTable(table)) for path, table in tables if table.mode in FLOAT_MODES
    ]
    decoder.update_modules(tree_unflatten(float_tables))


class FloatTable(nn.QuantizedEmbedding):
    """A table in one of the floating-point modes, its rows in `dtype`.

    They have no float among their tensors that says in which type to compute; MLX's own table
    takes bfloat16, in which multiplying the rows (as Gemma does) is not exact.
    """

    def __init__(self, table: nn.QuantizedEmbedding):
        layout = {"group_size": table.group_size, "bits": table.bits, "mode": table.mode}
        super().__init__(table.num_embeddings, table.dims, **layout)
        self.dtype = mx.float32

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.dequantize(
            self.weight[ids],
            self.scales[ids],
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
            dtype=self.dtype,
        )


def settle_tables(model: nn.Module) -> None:
    """Let each FloatTable give rows of the type that the model's other parameters have."""
    types = {p.dtype for _, p in tree_flatten(model.parameters())}
    floats = [t for t in (mx.float32, mx.float16, mx.bfloat16) if t in types]
    for module in model.modules():
        if isinstance(module, FloatTable) and floats:
            module.dtype = floats[0]


def stored_format(path: str, weights: dict[str, mx.array], width: int) -> Format:
    """The format of the quantized layer `path`, whose unquantized rows have `width` columns.

    Raises InputError when it is none of MLX's.
    """
    packed, scales = weights[f"{path}.weight"], weights[f"{path}.scales"]
    group_size = width // max(scales.shape[-1], 1)
    bits = 32 * packed.shape[-1] // width
    if f"{path}.biases" in weights:
        if bits in AFFINE_BITS and group_size in AFFINE_GROUPS:
            return Format(bits, group_size)
        raise InputError(
            f"the checkpoint's {path} looks like {bits}-bit weights in groups of {group_size}; "
            "MLX has 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        )
    for known in FLOAT_MODES.values():
        if (bits, group_size) == (known.bits, known.group_size) and scales.dtype == mx.uint8:
            return known
    raise InputError(
        f"the checkpoint's {path} has no biases and looks like {bits}-bit weights in groups of "
        f"{group_size}; MLX has {', '.join(f'{m} ({f})' for m, f in FLOAT_MODES.items())}"
    )


def _read(settings: dict[str, Any]) -> dict[str, Format | None]:
    """What is said of single layers; None: in floating point."""
    keys = [field.name for field in fields(Format)]
    mode = settings.get("mode", "affine")
    if mode not in MODES:
        raise InputError(
            f"config.json has quantization mode {mode!r}; Pippin reads {', '.join(MODES)}"
        )
    layers = {}
    for path, value in settings.items():
        if path in keys:
            continue
        if isinstance(value, dict) and value.keys() <= set(keys):
            # What a layer's own dict leaves out is MLX's default, not the other layers'.
            default = FLOAT_MODES.get(value.get("mode"), _DEFAULT)
            layers[path] = replace(default, **value)
        elif value is True:
            layers[path] = Format(**{key: settings[key] for key in keys if key in settings})
        elif value is False:
            layers[path] = None
        else:
            raise InputError(
                f"config.json has {path} = {value!r:.80} in its quantization; Pippin reads "
                f"{', '.join(keys)}, or false, of a layer"
            )
    return layers
