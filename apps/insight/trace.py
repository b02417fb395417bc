"""What a model's attention computed with, on one text, whichever engine runs the model.

Shapes: S tokens · H query heads · K key/value heads · D head_dim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...kernels.spec import AttentionSpec
from ...runtime.engine import Progress
from ...runtime.errors import InputError
from ...runtime.ort_engine import OrtEngine

if TYPE_CHECKING:
    from ...runtime.generator import Generator


@dataclass(frozen=True)
class LayerTrace:
    """The operands of one layer's attention, positions applied; float32."""

    layer: int  # from 0
    q: np.ndarray  # [H, S, D], not yet scaled
    k: np.ndarray  # [K, S, D]
    v: np.ndarray  # [K, S, D]
    spec: AttentionSpec  # a window that reaches beyond the text may be left out
    sinks: np.ndarray | None  # [H] logits that take weight from all keys
    slopes: np.ndarray | None  # [H] of ALiBi: a score loses slope·distance


@dataclass(frozen=True)
class Trace:
    """One text and the layers that were asked for."""

    tokens: tuple[int, ...]  # S of them
    layers: Mapping[int, LayerTrace]
    logits: np.ndarray  # [V], of the last token


def trace(
    generator: "Generator",
    tokens: Sequence[int],
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Run the model over `tokens` once and keep the operands of `layers` (None: of all).

    `progress(done, total)` is told of tokens. The forward is the engine's own, in chunks, with
    flash attention. On onnxruntime it is that of the graph with float activations and KV cache
    (`runtime.folder.open_folder`, kv "float"), which the first call loads a second time, with
    outputs for the operands; the engine keeps it.

    Raises InputError for tokens that do not fit, a layer that there is none of, an encoder-decoder,
    and a graph that does not show what its attention reads.
    """
    engine = generator.engine
    if isinstance(engine, OrtEngine):
        from .ort_trace import trace_ort

        return trace_ort(engine, tokens, layers, progress)
    if engine.info.backend == "mlx":
        from ...mlx_model.engine import MlxEngine
        from .mlx_trace import trace_mlx

        if isinstance(engine, MlxEngine):
            return trace_mlx(engine, tokens, layers, progress)
    raise InputError(
        f"{engine.info.model} is an encoder-decoder, whose attention cannot be shown; "
        "give a model that is a decoder alone"
    )


def chosen_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    """`layers` in order, each once; all of `count` for None. Raises InputError for others."""
    if layers is None:
        return list(range(count))
    if unknown := sorted(layer for layer in set(layers) if not 0 <= layer < count):
        raise InputError(
            f"there is no layer {unknown[0]}; the model has {count}, give 0 to {count - 1}"
        )
    return sorted(set(layers))
