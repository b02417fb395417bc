"""Channels that stand out among activations get columns of their own at the end of a matrix.

At accuracy level 4, MatMulNBits rounds each block of x to int8 at a scale of max|x|/127, so one
large channel takes the precision of the others in its block (LLM.int8(), arXiv:2208.07339). Here
such channels move into a block that they share with each other alone. On SmolLM2 eight of the 576
channels behind a norm carry nine tenths of what rounding does to q, k and v.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .nbits import NBits, pack, unpack
from .residual import round_columns


def with_outlier_columns(matrix: NBits, channels: Sequence[int], *, in_table: bool) -> NBits:
    """Add columns for these `channels` of x, a block of them at most.

    They are rounded twice: a second block holds what the first has left over. Their old columns
    become 0, so that x may have anything there. In a table, whose rows are looked up too, the old
    columns stay, where x must have 0 then, and the first block stands there two times: for the
    coarse part of x and for the rest (see `two_pass`).
    """
    block, at = matrix.block, np.asarray(channels)
    codes = unpack(matrix.codes, matrix.bits).reshape(matrix.rows, -1)  # [N, K]
    zeros = matrix.zero_points[:, at // block]
    wanted = np.zeros((matrix.rows, block), np.float32)
    wanted[:, : len(at)] = (codes[:, at].astype(np.float32) - zeros) * matrix.scales[:, at // block]
    if in_table:
        kept = matrix.codes
    else:
        codes = codes.copy()
        codes[:, at] = zeros
        kept = pack(codes, matrix.bits).reshape(matrix.codes.shape)
    del codes  # of a table they are many
    first, got = round_columns(wanted, matrix.bits, block, symmetric=matrix.symmetric)
    second, _ = round_columns(wanted - got, matrix.bits, block, symmetric=matrix.symmetric)
    added = [first, first, second] if in_table else [first, second]
    old = {"codes": kept, "scales": matrix.scales, "zero_points": matrix.zero_points}
    joined = {
        name: np.concatenate([array, *(each[index] for each in added)], axis=1)
        for index, (name, array) in enumerate(old.items())
    }
    columns = joined["codes"].shape[1] * block
    return replace(matrix, columns=columns, outliers=tuple(channels), **joined)


def sources(matrix: NBits) -> np.ndarray:
    """int64 [K]: which entry of [x, x's group sums] each column multiplies.

    Those whose weights are 0, an outlier's own among them, get a channel that is none.
    """
    block, groups = matrix.block, matrix.residual.shape[1]
    width = groups * block
    apart = set(matrix.outliers)
    order = np.arange(width)
    for channel in matrix.outliers:
        start = channel // block * block
        order[channel] = min(set(range(start, start + block)) - apart, default=channel)
    sums = width + np.tile(np.arange(groups), matrix.sum_copies)
    quiet = min(set(range(width)) - apart)
    columns = [order, _padded(sums, block, quiet)]
    columns += [_padded(np.array(matrix.outliers), block, quiet)] * 2
    return np.concatenate(columns).astype(np.int64)


def _padded(numbers: np.ndarray, block: int, fill: int) -> np.ndarray:
    """`numbers` up to whole blocks."""
    return np.pad(numbers, (0, -len(numbers) % block), constant_values=fill)
