"""The slopes of ALiBi (arXiv:2108.12409)."""

import math

from ...positions import Alibi


def alibi(heads: int, bias_max: float = 8.0) -> Alibi:
    """The slopes of `heads` heads: 2^(−bias_max·i/n) for i = 1…n where n = `heads` is a power of 2.

    Otherwise n is the next power of 2; the heads take its slopes of even i, then those of odd i
    as far as they go (the paper's code).
    """
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2.0 ** (-bias_max * i / power) for i in range(1, power + 1)]
    if power != heads:
        slopes = [*slopes[1::2], *slopes[::2]][:heads]
    return Alibi(tuple(slopes))
