"""`quantize_checkpoint`: a checkpoint's weights in fewer bits, in mlx-lm's format.

The tensors keep the checkpoint's own names and layout where mlx-lm keeps them (see
`quantize_layout`). A quantized X.weight [.., out, in] becomes X.weight (uint32), X.scales and, in
the mode affine, X.biases, as `mx.quantize` gives them. They are read, quantized and written one
after another: no more than one file is held in memory.
"""

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..runtime.errors import InputError
from .checkpoints.checkpoint import Checkpoint, open_checkpoint
from .checkpoints.gguf import read_gguf
from .checkpoints.safetensors import INDEX
from .checkpoints.whole_folder import check_target, written_whole
from .families import read_family
from .families.common.weights import drop
from .load import DERIVED, match_weights
from .quantize_layout import mlx_lm_layout
from .quantize_plan import (
    RECIPES,
    Layer,
    base_format,
    find_layers,
    make_plan,
    natural,
    parse_rule,
)
from .quantized_layers import Format

_SHARD_BYTES = 5 * 10**9  # of one file; mlx-lm's size
_WRITER = "pippin quantize"  # in each file's metadata: what may be overwritten
_FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})  # of GGUF
# Not taken along: weights in any format, and what describes their files.
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_WEIGHT_ENDINGS += (".index.json", ".onnx_data")


@dataclass(frozen=True)
class Quantized:
    """What was written."""

    path: Path
    base: Format  # of most layers
    plan: dict[str, Format | None]  # of each layer, by the checkpoint's name; None: floats
    too_narrow: dict[str, int]  # floats because no group divides their columns, which are these
    parameters: int
    bytes: int  # of all tensors

    @property
    def bits_per_weight(self) -> float:
        """Of all tensors, scales and floats included."""
        return 8 * self.bytes / self.parameters


def quantize_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    recipe: str | None = None,
    rules: Sequence[str] = (),
    requantize: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Quantized:
    """Write the checkpoint, quantized, to the folder `out`.

    `bits` (4) in groups of `group_size` (64) columns for the mode "affine"; "mxfp4", "nvfp4" and
    "mxfp8" have their own. `recipe`: one of RECIPES, which sets the bits. `rules`: see
    `parse_rule`. `requantize` permits a checkpoint that is quantized already, `overwrite` replacing
    a folder that this function wrote. `progress(done, total)` counts bytes of the new weights.

    The folder appears under its name when it is complete; what fails or is interrupted leaves
    nothing. Raises InputError for settings that MLX does not have or that contradict each other,
    rules that match nothing, a quantized checkpoint, an `out` that exists and may not be replaced,
    and a full disk.
    """
    base = _base(mode, bits, group_size, recipe)
    parsed = [parse_rule(rule, base) for rule in rules]
    target = Path(out).resolve()
    check_target(target, overwrite, _is_ours, "quantization")
    decoder, _ = match_weights(checkpoint)
    family = read_family(checkpoint.config)
    weights = drop(checkpoint.load_weights(), DERIVED)
    weights = mlx_lm_layout(weights, checkpoint.config, family)
    layers, unused = find_layers(weights, family, decoder)
    if not requantize:
        _refuse_quantized(checkpoint, layers)
    plan, too_narrow = make_plan(layers, decoder.config.layers, base, recipe, parsed)
    tensors = _tensors(weights, layers, unused, plan)
    del weights  # a tensor is let go when the last who holds it has written it
    parameters = _count(tensors, layers, plan)
    size = sum(array.nbytes for array in tensors.values())
    with written_whole(target) as folder:
        _write_weights(folder, tensors, parameters, progress)
        _write_json(folder / "config.json", _config(checkpoint, base, plan))
        _write_others(folder, checkpoint)
        match_weights(open_checkpoint(folder))  # what cannot be read back is not kept
    return Quantized(Path(out), base, plan, too_narrow, parameters, size)


def _base(mode: str, bits: int | None, group_size: int | None, recipe: str | None) -> Format:
    if recipe is None:
        return base_format(mode, bits, group_size)
    if recipe not in RECIPES:
        raise InputError(f"there is no recipe {recipe!r}; choose {', '.join(RECIPES)}")
    if mode != "affine" or bits is not None:
        what = f"mode {mode}" if mode != "affine" else f"{bits} bits"
        raise InputError(f"the recipe {recipe} sets the bits, and that of affine; leave out {what}")
    return base_format(mode, RECIPES[recipe][0], group_size)


def _refuse_quantized(checkpoint: Checkpoint, layers: list[Layer]) -> None:
    """Raise InputError when quantization has already taken something away."""
    types = {str(layer.stored) for layer in layers if layer.stored}
    if not checkpoint.path.is_dir():
        tensors = read_gguf(checkpoint.path).tensors.values()
        types = {tensor.type for tensor in tensors} - _FLOAT_TYPES
    if types:
        raise InputError(
            f"{checkpoint.path} is quantized already ({', '.join(sorted(types))}), and doing it "
            "again loses more; give the original, or allow it with --requantize"
        )


def _tensors(
    weights: dict[str, mx.array],
    layers: list[Layer],
    unused: set[str],
    plan: dict[str, Format | None],
) -> dict[str, mx.array]:
    """The new tensors by name, none of them read or computed yet."""
    by_path = {layer.path: layer for layer in layers}
    result: dict[str, mx.array] = {}
    for name in sorted(weights, key=natural):
        array = weights[name]
        stem, _, leaf = name.rpartition(".")
        layer = by_path.get(stem)
        if stem in unused:
            continue
        own = leaf in ("weight", "scales", "biases")  # not "bias", nor what a router has beside
        if layer is None or not own or plan[stem] == layer.stored:
            result[name] = array
        elif leaf == "weight":
            dense = array if layer.stored is None else _dequantize(weights, layer)
            result |= _quantize(stem, dense, plan[stem])
    return result


def _dequantize(weights: dict[str, mx.array], layer: Layer) -> mx.array:
    """In the type of its scales; float32 where they are 8-bit floats."""
    names = [f"{layer.path}.{leaf}" for leaf in ("weight", "scales", "biases")]
    return mx.dequantize(
        *(weights[name] for name in names if name in weights),
        **asdict(layer.stored),
        dtype=mx.float32 if layer.stored.mode != "affine" else None,
    )


def _quantize(stem: str, dense: mx.array, wanted: Format | None) -> dict[str, mx.array]:
    if wanted is None:
        return {f"{stem}.weight": dense}
    parts = mx.quantize(dense, **asdict(wanted))
    names = (f"{stem}.{leaf}" for leaf in ("weight", "scales", "biases"))
    return dict(zip(names, parts, strict=False))  # only the mode affine has biases


def _count(
    tensors: dict[str, mx.array], layers: list[Layer], plan: dict[str, Format | None]
) -> int:
    """Parameters of the model: those that packed weights stand for, no scales."""
    packed = {layer.path: layer for layer in layers if plan[layer.path]}
    total = 0
    for name, array in tensors.items():
        stem, _, leaf = name.rpartition(".")
        if stem in packed and leaf == "weight":
            total += array.size // array.shape[-1] * packed[stem].columns
        elif stem not in packed or leaf not in ("scales", "biases"):
            total += array.size
    return total


def _write_weights(
    folder: Path,
    tensors: dict[str, mx.array],
    parameters: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """The tensors in files of at most 5 GB, and their index; each is let go once it is written."""
    total = sum(array.nbytes for array in tensors.values())
    shards = list(_shards(tensors))
    placed: dict[str, str] = {}
    done = 0
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        path = folder / (file if len(shards) > 1 else "model.safetensors")
        shard = {name: tensors.pop(name) for name in names}
        for name, array in shard.items():
            mx.eval(array)
            placed[name] = path.name
            done += array.nbytes
            if progress is not None:
                progress(done, total)
        _save(path, shard)
    metadata = {"total_size": total, "total_parameters": parameters}
    index = {"metadata": metadata, "weight_map": dict(sorted(placed.items()))}
    _write_json(folder / INDEX, index)


def _shards(tensors: dict[str, mx.array]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, array in tensors.items():
        if names and size + array.nbytes > _SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += array.nbytes
    yield names


def _save(path: Path, shard: dict[str, mx.array]) -> None:
    """Raises OSError, as other writers do, where MLX has only a RuntimeError."""
    try:
        mx.save_safetensors(str(path), shard, {"format": "mlx", "writer": _WRITER})
    except RuntimeError as error:
        full = shutil.disk_usage(path.parent).free < sum(array.nbytes for array in shard.values())
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path)) from error


def _is_ours(folder: Path) -> bool:
    """Whether `quantize_checkpoint` wrote the folder."""
    for file in folder.glob("*.safetensors"):
        try:
            return mx.load(str(file), return_metadata=True)[1].get("writer") == _WRITER
        except RuntimeError:
            return False
    return False


def _config(checkpoint: Checkpoint, base: Format, plan: dict[str, Format | None]) -> dict[str, Any]:
    """The checkpoint's config.json with MLX's settings, under both of their names."""
    settings: dict[str, Any] = asdict(base)
    for path, wanted in plan.items():
        if wanted != base:
            settings[path] = asdict(wanted) if wanted else False
    return checkpoint.config | {"quantization": settings, "quantization_config": settings}


def _write_others(folder: Path, checkpoint: Checkpoint) -> None:
    """The tokenizer, its template, the defaults, and whatever else lies beside the weights."""
    if checkpoint.path.is_dir():
        for file in sorted(checkpoint.path.iterdir()):
            kept = not file.name.endswith(_WEIGHT_ENDINGS) and not file.name.startswith(".")
            if file.is_file() and kept and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        return
    if checkpoint.tokenizer_json:
        (folder / "tokenizer.json").write_text(checkpoint.tokenizer_json, "utf-8", newline="\n")
        _write_json(folder / "tokenizer_config.json", checkpoint.tokenizer_config)
    if checkpoint.generation_config:
        _write_json(folder / "generation_config.json", checkpoint.generation_config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=4, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
