"""Arrays as the memory that a kernel sees."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

INPUT, OUTPUT = 0, 1
_NUMPY = {
    mx.bool_: np.bool_,
    mx.uint8: np.uint8,
    mx.uint16: np.uint16,
    mx.uint32: np.uint32,
    mx.uint64: np.uint64,
    mx.int8: np.int8,
    mx.int16: np.int16,
    mx.int32: np.int32,
    mx.int64: np.int64,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,
    mx.float32: np.float32,
}


@dataclass
class Memory:
    """One buffer: the bytes from its first element to its last, and which of them are elements."""

    name: str
    kind: int
    data: np.ndarray  # uint8, one dimension
    granule: int  # bytes that bookkeeping goes by: 1, 2 or 4
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    itemsize: int
    valid: np.ndarray | None = None  # uint8, one for each granule
    initialised: bool = False

    def element(self, offset: int) -> str:
        """Where the byte at `offset` is, as an index into the array."""
        item = offset // self.itemsize
        total = int(np.prod(self.shape, dtype=np.int64))
        if self.valid is not None or not 0 <= item < total:
            return f"element {item}"
        return str(tuple(int(i) for i in np.unravel_index(item, self.shape or (1,))))


def from_array(name: str, array: np.ndarray, kind: int = INPUT) -> Memory:
    """An array, strided or not. Raises ValueError for negative strides."""
    granule = min(4, array.itemsize)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    common = (granule, array.shape, strides, array.itemsize)
    if array.flags.c_contiguous:
        return Memory(name, kind, array.reshape(-1).view(np.uint8), *common)
    if min(strides) < 0:
        raise ValueError(f"the emulator takes no negative strides, {name} has {strides}")
    last = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
    span = np.full((last + 1) * array.itemsize, 0xFF, np.uint8)
    _view(span.view(array.dtype), array)[...] = array
    marks = np.zeros(last + 1, np.uint8)
    _view(marks, array)[...] = 1
    return Memory(name, kind, span, *common, np.repeat(marks, array.itemsize // granule))


def _view(flat: np.ndarray, like: np.ndarray) -> np.ndarray:
    steps = [stride // like.itemsize * flat.itemsize for stride in like.strides]
    return np.lib.stride_tricks.as_strided(flat, like.shape, steps)


def from_mlx(name: str, array: mx.array) -> Memory:
    """An evaluated MLX array with the strides it has in memory."""
    return from_array(name, to_numpy_bits(array))


def empty(name: str, shape: tuple[int, ...], dtype: np.dtype) -> Memory:
    """An output of a kernel."""
    return from_array(name, np.zeros(shape, dtype), OUTPUT)


def to_numpy_bits(array: mx.array) -> np.ndarray:
    """A numpy view of an MLX array; bfloat16 as its uint16 bits."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.array(array, copy=False)


def numpy_dtype(dtype: mx.Dtype) -> np.dtype:
    """The numpy type with the same bits. Raises ValueError for a type kernels have not."""
    if dtype not in _NUMPY:
        raise ValueError(f"the emulator has no buffers of {dtype}")
    return np.dtype(_NUMPY[dtype])


def to_mlx(bits: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """The MLX array of the bits that a kernel wrote."""
    array = mx.array(bits)
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 else array


def to_numpy(array: mx.array) -> np.ndarray:
    """A numpy array with the values of `array`; bfloat16 as float32."""
    if array.dtype == mx.bfloat16:
        array = array.astype(mx.float32)
    return np.array(array)
