"""What one attention call computes, independent of who computes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """Scaled dot-product attention over H query heads that share K key/value heads.

    Query row i of L stands at position p = i + (S − L): the last query is aligned with the last
    key (bottom right). In the causal case it sees key j when j <= p, and with a window of W only
    when j > p − W: W keys, its own included. As 0/1 grids, for L = 2, S = 5 and L = 5, S = 2,
    then the first again with W = 2::

        1 1 1 1 0        0 0        0 0 1 1 0
        1 1 1 1 1        0 0        0 0 0 1 1
                         0 0
                         1 0
                         1 1

    Per sequence of a ragged batch, `starts` and `ends` say which keys exist: start <= j < end, and
    end takes S's place above. A row that sees no key gives 0, and −inf as its log-sum-exp.
    """

    heads: int  # H
    kv_heads: int  # K; H is a multiple of it
    head_dim: int  # D
    scale: float  # multiplies q·k before anything else; 1/sqrt(D) by default in the families
    causal: bool = True
    window: int | None = None  # W, keys, the current one included; causal only
    softcap: float | None = None  # s becomes cap·tanh(s/cap) (Gemma 2, arXiv:2408.00118)
