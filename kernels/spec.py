"""What one attention call computes, independent of who computes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """Scaled dot-product attention over H query heads that share K key/value heads.

    Query row i of L sees key j of S, in the causal case, when j <= i + (S - L): the last query is
    aligned with the last key (bottom right). As 0/1 grids, for L = 2, S = 5 and L = 5, S = 2::

        1 1 1 1 0        0 0
        1 1 1 1 1        0 0
                         0 0
                         1 0
                         1 1

    A fully masked row gives 0.
    """

    heads: int  # H
    kv_heads: int  # K; H is a multiple of it
    head_dim: int  # D
    scale: float  # multiplies q·k before the softmax; 1/sqrt(D) by default in the families
    causal: bool = True
