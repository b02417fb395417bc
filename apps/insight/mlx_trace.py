"""Attention's operands from the MLX engine: its own session, with caches that look on."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ...kernels.dispatch import attention
from ...kernels.spec import AttentionSpec
from ...kernels.statistics import attention_statistics
from ...mlx_model.caches.full import KVCache
from ...mlx_model.engine import MlxEngine
from ...runtime.engine import Progress
from .trace import LayerTrace, Trace, chosen_layers


def trace_mlx(
    engine: MlxEngine,
    tokens: Sequence[int],
    layers: Sequence[int] | None,
    progress: Progress | None,
) -> Trace:
    """See `trace.trace`."""
    chosen = chosen_layers(layers, engine.decoder.config.layers)
    session = engine.open()
    watched = {layer: _Watched(session.caches[layer]) for layer in chosen}
    session.caches = [watched.get(n, cache) for n, cache in enumerate(session.caches)]
    logits = np.array(session.prefill(tokens, progress=progress))
    traces = {layer: cache.trace(layer) for layer, cache in watched.items()}
    return Trace(tuple(tokens), traces, logits)


class _Watched:
    """A layer's cache that keeps all it is given; stands for it in one prefill."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._parts: list[tuple[mx.array, mx.array, mx.array]] = []  # q, k, v of each chunk
        self._spec: AttentionSpec | None = None
        self._arrays: dict[str, mx.array] = {}

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, spec: AttentionSpec, **arrays: mx.array
    ) -> mx.array:
        """As `KVCache.attend`."""
        self._parts.append((q, *self._cache.kept(keys, values)))
        self._spec, self._arrays = spec, arrays
        return self._cache.attend(q, keys, values, spec, **arrays)

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def offset(self) -> int:
        return self._cache.offset

    @property
    def state(self) -> list[mx.array]:
        return [*self._cache.state, *self._parts[-1]]

    def trace(self, layer: int) -> LayerTrace:
        """What was kept, as one."""
        joined = (mx.concatenate(parts, axis=2)[0] for parts in zip(*self._parts, strict=True))
        q, k, v = (_numpy(array) for array in joined)
        sinks, slopes = (self._arrays.get(name) for name in ("sinks", "slopes"))
        return LayerTrace(
            layer=layer,
            q=q,
            k=k,
            v=v,
            spec=self._spec,
            sinks=None if sinks is None else _numpy(sinks),
            slopes=None if slopes is None else _numpy(slopes),
        )


def _numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def metal_top_keys(layer: LayerTrace, k: int) -> tuple[np.ndarray, np.ndarray]:
    """`attention.top_keys` of all tokens, for up to 16, by `attention_statistics`."""
    q, keys, values = (mx.array(array)[None] for array in (layer.q, layer.k, layer.v))
    sinks, slopes = (None if a is None else mx.array(a) for a in (layer.sinks, layer.slopes))
    spec = layer.spec
    lse = attention(q, keys, values, spec, lse=True, sinks=sinks, slopes=slopes)[1]
    found = attention_statistics(q, keys, lse, spec, top_k=k, slopes=slopes)
    return np.array(found.top_ids[0]), np.array(found.top_weights[0])
