"""GGUF tensors as MLX arrays.

Q4_0, Q4_1 and Q8_0 hold one scale for 32 elements, which is MLX's affine quantization with group
size 32: w = scale·q + bias. MXFP4 is MLX's mode mxfp4 (OCP MX v1.0). They are repacked, never
dequantized. F32, F16 and BF16 are taken as they are. Every other type is dequantized to float32
by the `gguf` library: exact, at the price of 4 bytes a weight.

Block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from typing import TYPE_CHECKING

import numpy as np

from ...runtime.errors import InputError
from .gguf import GGUFFile, GGUFTensor

if TYPE_CHECKING:
    import mlx.core as mx

_DIRECT = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_SCALE_BYTES = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2, "MXFP4": 1}  # in front of a block's 32 elements


def load_tensor(
    file: GGUFFile,
    tensor: GGUFTensor,
    row_order: np.ndarray | None = None,
    *,
    packed: bool = True,
) -> dict[str, "mx.array"]:
    """One tensor, what its first axis counts taken in `row_order`; None: as it is.

    Returns {"weight": …}, with "scales" and "biases" […, columns / 32] beside it when it is in
    MLX's affine layout, or "scales" alone in the mode mxfp4; those of the former keep the file's
    float16 unless it cannot hold them. `packed`: otherwise floating point whatever the file has.
    Raises InputError for a type that the `gguf` library cannot dequantize.
    """
    import mlx.core as mx

    raw = file.raw(tensor)
    if packed and tensor.type in _SCALE_BYTES and len(tensor.shape) > 1:
        layers = repack(raw, tensor.type)
        shaped = {n: values.reshape(*tensor.shape[:-1], -1) for n, values in layers.items()}
        order = slice(None) if row_order is None else row_order
        return {name: mx.array(values[order]) for name, values in shaped.items()}
    if tensor.type in _DIRECT:
        values = raw.view(_DIRECT[tensor.type]).reshape(tensor.shape)
    else:
        values = _dequantize(file, tensor, raw)
    weight = mx.array(values if row_order is None else values[row_order])
    return {"weight": weight.view(mx.bfloat16) if tensor.type == "BF16" else weight}


def repack(raw: np.ndarray, type_: str) -> dict[str, np.ndarray]:
    """Blocks of Q4_0, Q4_1, Q8_0 or MXFP4, uint8 [rows, row_bytes], in MLX's layouts."""
    rows = len(raw)
    skip = _SCALE_BYTES[type_]
    blocks = raw.reshape(rows, -1, skip + (32 if type_ == "Q8_0" else 16))
    body = np.ascontiguousarray(blocks[..., skip:])
    if type_ == "MXFP4":
        codes = _interleave(body).reshape(rows, -1).view(np.uint32)
        return {"weight": codes, "scales": np.ascontiguousarray(blocks[..., 0])}
    head = np.ascontiguousarray(blocks[..., :skip]).view(np.float16)
    scales = head[..., 0]
    if type_ == "Q4_1":
        biases = head[..., 1]
    else:
        biases = scales.astype(np.float32) * (-128 if type_ == "Q8_0" else -8)
        if np.abs(biases).max(initial=0) > np.finfo(np.float16).max:
            scales = scales.astype(np.float32)
        biases = biases.astype(scales.dtype)
    packed = body ^ 0x80 if type_ == "Q8_0" else _interleave(body)
    return {
        "weight": packed.reshape(rows, -1).view(np.uint32),
        "scales": np.ascontiguousarray(scales),
        "biases": np.ascontiguousarray(biases),
    }


def _interleave(body: np.ndarray) -> np.ndarray:
    """Nibbles in ggml's order to MLX's.

    In ggml's block of 16 bytes, byte i holds element i (low nibble) and 16 + i (high); in MLX's,
    it holds 2i and 2i + 1. Two bytes of ggml, read as one little-endian word, give one byte each.
    """
    words = body.view("<u2")  # [..., 8]: nibbles, from the low end: i, 16 + i, i + 1, 17 + i
    low = (words & 0x0F) | ((words >> 4) & 0xF0)
    high = ((words >> 4) & 0x0F) | ((words >> 8) & 0xF0)
    return np.concatenate([low, high], axis=-1, dtype=np.uint8, casting="unsafe")


def _dequantize(file: GGUFFile, tensor: GGUFTensor, raw: np.ndarray) -> np.ndarray:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        with np.errstate(all="ignore"):
            values = dequantize(raw, GGMLQuantizationType[tensor.type])
    except NotImplementedError as error:
        raise InputError(
            f"{file.path}: tensor {tensor.name!r} has type {tensor.type}, which cannot be read"
        ) from error
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)
