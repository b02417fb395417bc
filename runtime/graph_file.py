"""What a .onnx file says before it is opened: its data files, operators and metadata.

A reader of the few protobuf fields in question, so that the runtime does without the `onnx` package
(numbers: onnx.proto3; wire format: protobuf.dev/programming-guides/encoding). Tensors that lie in
the file are skipped, not read.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GRAPH, _METADATA = 7, 14  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_OUTPUT, _OP_TYPE = 2, 4  # of NodeProto
_NAME, _EXTERNAL_DATA = 8, 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto

# In the metadata of our graphs: the oldest onnxruntime that is right, and "int8" for such a cache.
MINIMUM_METADATA = "pippin.minimum_onnxruntime"
KV_METADATA = "pippin.kv"
# Up to so many tokens of one call, each gets the same bits as alone.
ROWS_METADATA = "pippin.rows_alike"
# An initializer where the cache is int8: calls of so many tokens at most compute on its codes.
SHORT_CALL = "kv.limit"

Span = tuple[int, int]  # begin and end of a field's bytes in the file


@dataclass(frozen=True)
class ExternalTensor:
    """A tensor in a data file; offset and length in bytes."""

    name: str
    location: str  # relative to the graph's directory
    offset: int
    length: int | None  # None: to the end of the file


@dataclass(frozen=True)
class GraphFile:
    """The top level of one graph."""

    external: tuple[ExternalTensor, ...]
    operators: dict[str, str]  # the operator that makes a value, by the value's name
    metadata: dict[str, str]


def read_graph_file(path: Path) -> GraphFile:
    """Read `path`. Raises InputError for what is no ONNX model, or only a part of one."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _read(data)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped: a ValueError
        raise InputError(
            f"cannot load {path}: it is no whole ONNX model ({error}); copy or export it again"
        ) from error
    return found


def _read(data: mmap.mmap) -> GraphFile:
    external: list[ExternalTensor] = []
    operators: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for number, graph in _fields(data, (0, len(data))):
        if number == _METADATA:
            metadata |= [_entry(data, graph)]
        for kind, part in _fields(data, graph) if number == _GRAPH else ():
            if kind == _INITIALIZER:
                external.extend(_external_tensor(data, part))
            elif kind == _NODE:
                fields = list(_fields(data, part))
                operator = next((_text(data, span) for n, span in fields if n == _OP_TYPE), "")
                operators |= {_text(data, span): operator for n, span in fields if n == _OUTPUT}
    if not operators:
        raise ValueError("it has no operators")
    return GraphFile(tuple(external), operators, metadata)


def _external_tensor(data: mmap.mmap, tensor: Span) -> Iterator[ExternalTensor]:
    """The tensor, when it lies elsewhere."""
    name, place = "", {}
    for number, span in _fields(data, tensor):
        if number == _NAME:
            name = _text(data, span)
        elif number == _EXTERNAL_DATA:
            place |= [_entry(data, span)]
    if place:
        length = int(place["length"]) if "length" in place else None
        yield ExternalTensor(name, place.get("location", ""), int(place.get("offset", 0)), length)


def _entry(data: mmap.mmap, pair: Span) -> tuple[str, str]:
    """Key and value of a StringStringEntryProto."""
    entry = {n: _text(data, part) for n, part in _fields(data, pair)}
    return entry.get(_KEY, ""), entry.get(_VALUE, "")


def _fields(data: mmap.mmap, message: Span) -> Iterator[tuple[int, Span]]:
    """Number and bytes of each field of a message; ValueError where it is cut off or none."""
    at, end = message
    while at < end:
        tag, at = _varint(data, at, end)
        kind, begin = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif kind in (_FIXED32, _FIXED64):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {kind} at byte {begin:,}")
        if at > end:
            raise ValueError(f"it ends at byte {end:,}, within a field of {at - begin:,} bytes")
        yield tag >> 3, (begin, at)


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError(f"a number at byte {at:,} does not end")


def _text(data: mmap.mmap, span: Span) -> str:
    return data[span[0] : span[1]].decode("utf-8")
