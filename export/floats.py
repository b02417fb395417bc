"""MLX arrays as numpy chunks in a float type of the graph."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
from onnx import TensorProto, helper

from ..runtime.errors import InputError

_CHUNK_BYTES = 32 * 2**20  # converted at a time


def float_array(name: str, array: mx.array, dtype: int) -> np.ndarray:
    """A small array, converted whole."""
    return _convert(name, array, dtype)


def rows(
    name: str, shape: tuple[int, int], read: Callable[[slice], mx.array], dtype: int
) -> Iterator[np.ndarray]:
    """The rows of [N, K] = `shape` in order, some at a time; `read` gives a part of them."""
    step = _step(shape[1])
    for start in range(0, shape[0], step):
        yield _convert(name, read(slice(start, start + step)), dtype)


def transposed_rows(name: str, arrays: list[mx.array], dtype: int) -> Iterator[np.ndarray]:
    """The rows of [K, ΣN], the arrays [N, K] transposed and side by side, some at a time."""
    step = _step(sum(array.shape[0] for array in arrays))
    for start in range(0, arrays[0].shape[1], step):
        parts = [array[:, start : start + step].T for array in arrays]
        yield _convert(name, mx.concatenate(parts, axis=1), dtype)


def _step(width: int) -> int:
    return max(1, _CHUNK_BYTES // (4 * width))


def _convert(name: str, array: mx.array, dtype: int) -> np.ndarray:
    """Raises InputError where a finite weight becomes infinite in float16."""
    values = np.array(array.astype(mx.float32))
    if dtype != TensorProto.FLOAT16:
        return values
    with np.errstate(over="ignore"):
        halves = values.astype(helper.tensor_dtype_to_np_dtype(dtype))
    if not np.array_equal(np.isfinite(halves), np.isfinite(values)):
        raise InputError(f"{name} has values beyond the range of float16; export fp32 instead")
    return halves
