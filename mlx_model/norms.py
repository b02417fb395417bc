"""Modules for the norms of `config.Norm`; the interpreters compute them."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from .config import Norm


class PlusOneRMSNorm(nn.RMSNorm):
    """RMSNorm whose factor is 1 + weight (Gemma, arXiv:2403.08295)."""

    def __init__(self, dims: int, eps: float):
        super().__init__(dims, eps)
        self.weight = mx.zeros((dims,))


def make_norm(norm: Norm, dims: int, shape: Sequence[int] | None = None) -> nn.Module:
    """The module that normalises vectors of `dims` values; its weight may be of another shape."""
    if norm.kind == "layer":
        module = nn.LayerNorm(dims, norm.eps, bias=norm.bias)
    elif norm.plus_one:
        module = PlusOneRMSNorm(dims, norm.eps)
    else:
        module = nn.RMSNorm(dims, norm.eps)
    if shape is not None:
        module.weight = mx.broadcast_to(module.weight, shape)
    return module
