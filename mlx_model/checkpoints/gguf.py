"""Reading the frame of a GGUF file: its metadata, and where each tensor's bytes lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
little-endian. Everything is checked against the file's size before it is read.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.errors import InputError
from .files import refuse_lfs_pointer

_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# value type of the file -> struct code
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor's place in the file."""

    name: str
    type: str  # as ggml names it: "F32", "Q4_1", …
    shape: tuple[int, ...]  # row-major: the reverse of the order in the file
    offset: int  # bytes from the start of the file
    row_bytes: int  # bytes of one row, i.e. of shape[-1] elements

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file, opened: metadata as plain Python values, tensors still on disk."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    buffer: mmap.mmap

    def raw(self, tensor: GGUFTensor) -> np.ndarray:
        """A tensor's bytes as they are in the file, uint8 [rows, row_bytes], memory-mapped."""
        count = tensor.rows * tensor.row_bytes
        data = np.frombuffer(self.buffer, np.uint8, count, tensor.offset)
        return data.reshape(tensor.rows, tensor.row_bytes)


def read_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file. Raises InputError: not GGUF, truncated, or damaged."""
    reader = _Reader(path)
    tensor_count, metadata = reader.metadata()
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise InputError(f"{path} is damaged: general.alignment is {alignment!r}")
    tensors: dict[str, GGUFTensor] = {}
    infos = [reader.tensor_info() for _ in range(reader.checked(tensor_count, 24, "tensors"))]
    start = -(-reader.position // alignment) * alignment
    for name, type_id, shape, offset in infos:
        if name in tensors:
            raise InputError(f"{path} is damaged: it has two tensors named {name!r}")
        tensors[name] = _place(path, reader.size, name, type_id, shape, start + offset)
    return GGUFFile(path, metadata, tensors, reader.buffer)


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value section of a GGUF file as plain Python values (lists for arrays).

    Raises InputError: not GGUF, truncated, or damaged.
    """
    return _Reader(path).metadata()[1]


def _place(
    path: Path, size: int, name: str, type_id: int, shape: tuple[int, ...], offset: int
) -> GGUFTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        type_ = GGMLQuantizationType(type_id)
        block, block_bytes = GGML_QUANT_SIZES[type_]
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: tensor {name!r} has the unknown ggml type {type_id}") from error
    if shape[-1] % block:
        raise InputError(
            f"{path} is damaged: tensor {name!r} has rows of {shape[-1]}, "
            f"{type_.name} needs a multiple of {block}"
        )
    tensor = GGUFTensor(name, type_.name, shape, offset, shape[-1] // block * block_bytes)
    end = offset + tensor.rows * tensor.row_bytes
    if end > size:
        raise InputError(
            f"{path} is truncated: tensor {name!r} ends at byte {end:,}, the file has "
            f"{size:,}; fetch it again"
        )
    return tensor


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        try:
            with path.open("rb") as file:
                head = file.read(4)
                refuse_lfs_pointer(path, head)
                if head != b"GGUF":
                    raise InputError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        self.size = len(self.buffer)

    def metadata(self) -> tuple[int, dict[str, Any]]:
        """The number of tensors, and the key-value section."""
        self.position = 4
        version = self.scalar("I")
        if version not in {2, 3}:
            swapped = version & 0xFFFF == 0
            what = "big-endian" if swapped else f"of version {version}"
            raise InputError(f"{self.path} is a GGUF file {what}; 2 and 3, little-endian, are read")
        tensor_count, key_count = self.scalar("Q"), self.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(self.checked(key_count, 13, "keys")):
            key = self.string()
            if key in metadata:
                raise InputError(f"{self.path} is damaged: it has two values for {key!r}")
            metadata[key] = self.value(self.scalar("I"), key)
        return tensor_count, metadata

    def tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, ggml type id, row-major shape, offset from the start of the data."""
        name = self.string()
        dimensions = self.scalar("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise InputError(f"{self.path} is damaged: {name!r} has {dimensions} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
        if 0 in shape:
            raise InputError(f"{self.path} is damaged: {name!r} has the shape {list(shape)}")
        return name, self.scalar("I"), shape, self.scalar("Q")

    def value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self.array(key)
        if type_id not in _SCALARS:
            raise InputError(f"{self.path} is damaged: {key!r} has the unknown type {type_id}")
        return self.scalar(_SCALARS[type_id])

    def array(self, key: str) -> list:
        type_id, count = self.scalar("I"), self.scalar("Q")
        if type_id == _STRING:
            return [self.string() for _ in range(self.checked(count, 8, key))]
        if type_id not in _SCALARS:
            raise InputError(f"{self.path}: {key!r} is an array of the unknown type {type_id}")
        code = _SCALARS[type_id]
        count = self.checked(count, struct.calcsize(code), key)
        values = struct.unpack_from(f"<{count}{code}", self.buffer, self.position)
        self.position += count * struct.calcsize(code)
        return list(values)

    def scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        except struct.error as error:
            raise self.truncated() from error
        self.position += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.checked(self.scalar("Q"), 1, "a string")
        start, self.position = self.position, self.position + length
        try:
            return self.buffer[start : self.position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.path} is damaged: the string at byte {start:,} is not UTF-8"
            ) from error

    def checked(self, count: int, item_bytes: int, what: str) -> int:
        """`count`, once it is sure that so many items of at least `item_bytes` can follow."""
        if count * item_bytes > self.size - self.position:
            raise self.truncated(f" ({what}: {count:,} announced)")
        return count

    def truncated(self, detail: str = "") -> InputError:
        return InputError(
            f"{self.path} is truncated or damaged: its header goes on past byte "
            f"{self.position:,} of {self.size:,}{detail}; fetch it again"
        )
