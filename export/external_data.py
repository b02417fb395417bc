"""The weights' files beside an ONNX graph, written tensor by tensor while the graph is built.

`model.onnx` keeps its tensors in `model.onnx_data`, then `model.onnx_data_1`, … A new file begins
where the next tensor would pass the limit: browsers cannot hold more than 2 GB in one piece.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from onnx import TensorProto, helper

FILE_LIMIT = 2_000_000_000  # bytes of one file; a single larger tensor has a file to itself
_PAGE = 4096  # tensors that are worth mapping begin at a page
_WORTH_MAPPING = 16 * _PAGE
_ALIGNMENT = 64  # the others at a cache line


class ExternalData:
    """Appends tensors to the data files of the graph at `graph` (…/model.onnx).

    A file holds `limit` bytes, FILE_LIMIT when that is None.

    A context manager: leaving it flushes the last file to the disk.
    """

    def __init__(self, graph: Path, limit: int | None = None):
        self._graph = graph
        self._limit = limit or FILE_LIMIT
        self._file: BinaryIO | None = None
        self.files: list[Path] = []  # written so far, in order

    def add(
        self, name: str, dtype: int, shape: tuple[int, ...], chunks: Iterable[np.ndarray]
    ) -> TensorProto:
        """Append a tensor and return the initializer that points at it.

        `dtype` is ONNX's (4-bit elements are packed two a byte). The C-contiguous `chunks`, one
        after another, are the tensor's bytes in row-major order; only one is held at a time.
        """
        length = tensor_bytes(dtype, shape)
        offset = self._begin(length)
        for chunk in chunks:
            self._file.write(np.ascontiguousarray(chunk).data.cast("B"))
        written = self._file.tell() - offset
        if written != length:
            raise ValueError(f"{name} {shape} takes {length} bytes, {written} were given")
        tensor = TensorProto(name=name, data_type=dtype, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": self.files[-1].name, "offset": offset, "length": length}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def __enter__(self) -> "ExternalData":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(sync=error is None)

    def _begin(self, length: int) -> int:
        """The offset of the next tensor, in the current file or a new one."""
        alignment = _PAGE if length >= _WORTH_MAPPING else _ALIGNMENT
        offset = 0 if self._file is None else -(-self._file.tell() // alignment) * alignment
        if self._file is None or (offset and offset + length > self._limit):
            self._close(sync=True)
            number = f"_{len(self.files)}" if self.files else ""
            self.files.append(self._graph.with_name(f"{self._graph.name}_data{number}"))
            self._file = self.files[-1].open("wb")
            return 0
        self._file.write(bytes(offset - self._file.tell()))
        return offset

    def _close(self, sync: bool) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            if sync:
                file.flush()
                os.fsync(file.fileno())


def tensor_bytes(dtype: int, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor of ONNX's `dtype` takes."""
    count = math.prod(shape)
    if dtype in (TensorProto.UINT4, TensorProto.INT4):
        return -(-count // 2)
    return count * helper.tensor_dtype_to_np_dtype(dtype).itemsize
