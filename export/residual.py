"""Residuals of zero points as further columns of the same matrix.

Σ_k residual[g(k)]·x_k = Σ_g residual[g]·(Σ_{k in g} x_k): a residual is the weight of a group sum
of x, so a matrix [N, K + c·G] that multiplies [x, c times its G group sums] can hold them,
quantized like all else. On SmolLM2 (Q4_1, whose zero points are no integers) this costs 8 % of
decode speed, a float32 product with the sums 18 %; dropping the residuals costs 0.26 nats of KL
divergence.
"""

from dataclasses import replace

import numpy as np

from .nbits import NBits, pack

_MAX_ROUNDS = 4  # of quantizing what the round before has left over


def with_residual_columns(matrix: NBits) -> NBits:
    """Add columns until what is left of the residual no longer matters.

    A round of G columns begins at a block of its own, since its scales are its own. The sums
    simply repeat: added column j belongs to group j mod G, and columns between rounds weigh 0.
    """
    block, groups = matrix.block, matrix.residual.shape[1]
    width = -(-groups // block) * block  # columns from one round to the next
    left = matrix.residual.copy()
    rounds: list[tuple[np.ndarray, ...]] = []
    while len(rounds) < _MAX_ROUNDS and replace(matrix, residual=left).needs_residual:
        order = (len(rounds) * width + np.arange(groups)) % groups
        wanted = np.zeros((matrix.rows, width), np.float32)
        wanted[:, :groups] = left[:, order]
        added, got = round_columns(wanted, matrix.bits, block)
        left[:, order] -= got[:, :groups]
        rounds.append(added)
    copies = -(-((len(rounds) - 1) * width + groups) // groups)
    blank = -(-copies * groups // block) - len(rounds) * width // block
    old = (matrix.codes, matrix.scales, matrix.zero_points)
    codes, scales, zero_points = (
        _extended(array, [added[i] for added in rounds], blank) for i, array in enumerate(old)
    )
    return replace(
        matrix,
        columns=matrix.columns + copies * groups,
        codes=codes,
        scales=scales,
        zero_points=zero_points,
        residual=left,
        sum_copies=copies,
    )


def round_columns(
    values: np.ndarray, bits: int, block: int, *, symmetric: bool = False
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Round [N, n] to nearest by blocks: codes, scales and zero points; what they stand for.

    `symmetric`: with the zero point in the middle, which MatMulNBits need not be told.
    """
    blocks, middle = values.reshape(len(values), -1, block), 1 << (bits - 1)
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    if symmetric:
        scales = (np.maximum(-low, high) / (middle - 1)).astype(np.float32)
    else:
        scales = ((high - low) / (2**bits - 1)).astype(np.float32)
    steps = np.where(scales == 0, 1, scales)[..., None]
    zero_points = np.full(steps.shape, middle) if symmetric else np.rint(-low[..., None] / steps)
    codes = np.clip(np.rint(blocks / steps) + zero_points, 0, 2**bits - 1)
    got = (codes - zero_points) * scales[..., None]
    packed = pack(codes.astype(np.uint8), bits)
    return (packed, scales, zero_points[..., 0].astype(np.uint8)), got.reshape(values.shape)


def _extended(array: np.ndarray, added: list[np.ndarray], blank: int) -> np.ndarray:
    """`array` [N, G, …] with the rounds' blocks and `blank` blocks of zeros after its own."""
    zeros = np.zeros((len(array), blank, *array.shape[2:]), array.dtype)
    return np.concatenate([array, *added, zeros], axis=1)
