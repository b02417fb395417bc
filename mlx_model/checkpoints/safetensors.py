"""The safetensors files of a checkpoint directory: checked by their headers, read lazily by MLX.

Format: https://github.com/huggingface/safetensors#format. A file is 8 bytes of header length, a
JSON header, and the tensors' bytes without gaps, so its size says whether it is whole.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.errors import InputError
from .files import read_json, refuse_lfs_pointer

if TYPE_CHECKING:
    import mlx.core as mx

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2} | {
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
}
_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its file's header describes it."""

    dtype: str  # as the format names it: "BF16", "U32", …
    shape: tuple[int, ...]
    begin: int  # bytes, from the end of the header
    end: int


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, every header and the index checked.

    Raises InputError: none there, shards missing, a file truncated or damaged, tensors that the
    index and the files do not agree on, a dtype that MLX does not have.
    """
    if (folder / INDEX).is_file():
        return _indexed(folder)
    files = sorted(folder.glob("*.safetensors"))
    # Mistral's own copy of the same weights, beside Hugging Face's
    files = [f for f in files if not f.name.startswith("consolidated")] or files
    if not files:
        raise _no_weights(folder)
    _require_all_parts(folder, files)
    owner: dict[str, Path] = {}
    for file in files:
        for name in read_header(file):
            if name in owner:
                raise InputError(f"{folder} has {name!r} in {owner[name].name} and {file.name}")
            owner[name] = file
    return files


def load(files: Iterable[Path]) -> dict[str, "mx.array"]:
    """All tensors of the files; the bytes are read when a tensor is first evaluated."""
    import mlx.core as mx

    weights: dict[str, mx.array] = {}
    for file in files:
        weights.update(mx.load(str(file)))
    return weights


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file. Raises InputError unless the file is whole and readable here."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(8)
            refuse_lfs_pointer(path, head)
            length = int.from_bytes(head, "little")
            if len(head) == 8 and length > _MAX_HEADER:
                raise InputError(
                    f"{path} is not a safetensors file, or its first bytes are damaged"
                )
            if len(head) < 8 or 8 + length > size:
                raise InputError(
                    f"{path} is truncated: its {size:,} bytes end within its header; fetch it again"
                )
            header = file.read(length)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    tensors = _parse(path, header)
    _require_whole(path, tensors, size - 8 - length)
    return tensors


def _parse(path: Path, header: bytes) -> dict[str, TensorInfo]:
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        return {name: _tensor(path, name, entry) for name, entry in entries.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: its header cannot be read ({error})") from error


def _tensor(path: Path, name: str, entry: dict[str, Any]) -> TensorInfo:
    begin, end = entry["data_offsets"]
    numbers = [*entry["shape"], begin, end]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{name!r} has shape or offsets that are no counts")
    dtype = entry["dtype"]
    if dtype not in _SIZES:
        raise InputError(
            f"{path} has {name!r} in {dtype}, which MLX cannot hold; convert the checkpoint to "
            "BF16, F16 or F32"
        )
    tensor = TensorInfo(dtype, tuple(entry["shape"]), begin, end)
    if end - begin != math.prod(tensor.shape) * _SIZES[dtype]:
        raise ValueError(f"{name!r} has {end - begin} bytes, its shape and dtype say otherwise")
    return tensor


def _require_whole(path: Path, tensors: dict[str, TensorInfo], size: int) -> None:
    """The tensors must cover the `size` bytes behind the header exactly."""
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin != position:
            raise InputError(f"{path} is damaged: {name!r} overlaps another tensor or leaves a gap")
        position = tensor.end
    if position > size:
        raise InputError(
            f"{path} is truncated: {position - size:,} of {position:,} bytes of weights are "
            "missing; fetch it again"
        )
    if position < size:
        raise InputError(f"{path} is damaged: {size - position:,} bytes follow its last tensor")


def _indexed(folder: Path) -> list[Path]:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise InputError(f"{index} places {tensor!r} in {shard!r}, expected a file beside it")
        shards.setdefault(shard, set()).add(tensor)
    if missing := [shard for shard in sorted(shards) if not (folder / shard).is_file()]:
        raise InputError(
            f"{folder} lacks {_some(missing)}, listed in {INDEX}; fetch the rest of the checkpoint"
        )
    for shard, listed in shards.items():
        _compare(index, shard, listed, set(read_header(folder / shard)))
    return [folder / shard for shard in sorted(shards)]


def _compare(index: Path, shard: str, listed: set[str], present: set[str]) -> None:
    if absent := sorted(listed - present):
        raise InputError(f"{index} lists {_some(absent)} in {shard}, which does not have it")
    if extra := sorted(present - listed):
        raise InputError(f"{index.parent / shard} has {_some(extra)}, which {INDEX} does not list")


def _require_all_parts(folder: Path, files: list[Path]) -> None:
    """Names like model-00002-of-00005.safetensors tell, without an index, what must be there."""
    present = {file.name for file in files}
    expected = set()
    for name in present:
        if match := re.fullmatch(r"(.+-)(\d{5})(-of-)(\d{5})(\.safetensors)", name):
            stem, _, of, count, suffix = match.groups()
            parts = range(1, int(count) + 1)
            expected |= {f"{stem}{part:05}{of}{count}{suffix}" for part in parts}
    if missing := sorted(expected - present):
        raise InputError(f"{folder} lacks {_some(missing)}; fetch the rest of the checkpoint")


def _no_weights(folder: Path) -> InputError:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return InputError(
            f"{folder} has its weights as pickled PyTorch files, which can run code when read; "
            "convert it to safetensors (transformers: save_pretrained)"
        )
    if (folder / "onnx").is_dir():
        return InputError(
            f"{folder} is an exported folder without *.safetensors; expected the checkpoint that "
            "it came from"
        )
    return InputError(f"{folder} has a config.json but no *.safetensors; expected a checkpoint")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
