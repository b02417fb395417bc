"""What a model's attention computed with, on one text, whichever engine runs the model.

Shapes: S tokens · H query heads · K key/value heads · D head_dim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...kernels.spec import AttentionSpec

if TYPE_CHECKING:
    from ...runtime.generator import Generator


@dataclass(frozen=True)
class LayerTrace:
    """The operands of one layer's attention, positions applied; float32."""

    layer: int  # from 0
    q: np.ndarray  # [H, S, D], not yet scaled
    k: np.ndarray  # [K, S, D]
    v: np.ndarray  # [K, S, D]
    spec: AttentionSpec
    sinks: np.ndarray | None  # [H] logits that take weight from all keys
    slopes: np.ndarray | None  # [H] of ALiBi: a score loses slope·distance


@dataclass(frozen=True)
class Trace:
    """One text and the layers that were asked for."""

    tokens: tuple[int, ...]  # S of them
    layers: Mapping[int, LayerTrace]
    logits: np.ndarray  # [V], of the last token


def trace(
    generator: "Generator", tokens: Sequence[int], layers: Sequence[int] | None = None
) -> Trace:
    """Run the model over `tokens` once and keep the operands of `layers` (None: of all).

    Raises InputError for tokens that do not fit, a layer that there is none of, and a graph that
    does not show what its attention reads.
    """
    raise NotImplementedError
