"""Attention's operands from the onnxruntime engine: its graph with more outputs.

Queries come from the inputs of the attention nodes, keys and values from the caches. What a node
does itself is read from it: rotation by the tables that it is given, scale, window, softcap, sinks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime as ort

from ...kernels.spec import AttentionSpec
from ...runtime.engine import Progress
from ...runtime.errors import InputError
from ...runtime.folder import open_folder
from ...runtime.ort_caches import Caches, GrowingCaches, Layer, SharedCaches
from ...runtime.ort_engine import OrtEngine
from ...runtime.ort_graph import Graph, load_graph
from ...runtime.ort_session import OrtSession
from .ort_masks import Masks
from .ort_nodes import Node, show_nodes
from .trace import LayerTrace, Trace, chosen_layers


@dataclass(frozen=True)
class _Shown:
    """A graph whose attention nodes' operands are outputs."""

    graph: Graph
    nodes: tuple[Node, ...]  # one a layer
    name: str  # for errors


# Loading reads all weights again, and a text is seldom the only one. Gone with the engine.
_shown: WeakKeyDictionary[OrtEngine, _Shown] = WeakKeyDictionary()


def trace_ort(
    engine: OrtEngine,
    tokens: Sequence[int],
    layers: Sequence[int] | None,
    progress: Progress | None,
) -> Trace:
    """See `trace.trace`."""
    shown = _shown.get(engine)
    if shown is None:
        shown = _shown[engine] = _show(engine)
    graph = shown.graph
    chosen = chosen_layers(layers, len(graph.layers))
    watched = {layer: _Watched(shown, layer, len(tokens)) for layer in chosen}
    plain = (SharedCaches if graph.shared else GrowingCaches)(graph)
    caches = _Caches(plain, list(watched.values()))
    logits = OrtSession(graph, engine.info, caches).prefill(tokens, progress=progress)
    kept = enumerate(caches.layers(len(tokens)))
    traces = {layer: watched[layer].trace(*pair) for layer, pair in kept if layer in watched}
    return Trace(tuple(tokens), traces, logits)


def _show(engine: OrtEngine) -> _Shown:
    folder = open_folder(engine.folder.path, engine.folder.weights, "float")
    model, nodes = show_nodes(folder)
    graph = load_graph(folder, engine.threads, model=model)
    if any(layer.dtype is np.int8 for layer in graph.layers):
        raise InputError(
            f"{folder.graph} keeps its keys as int8, which cannot be shown; export the model with "
            "`pippin export`"
        )
    return _Shown(graph, nodes, str(folder.graph))


class _Watched:
    """What is kept of one layer while a text is run."""

    def __init__(self, shown: _Shown, layer: int, total: int) -> None:
        cache = shown.graph.layers[layer]
        self.node = shown.nodes[layer]
        self._layer, self._total, self._done = layer, total, 0
        self._kv_heads, self._head_dim = cache.kv_heads, cache.head_dim
        self._masks = Masks(shown.name, self.node.causal) if self.node.mask else None
        self._q: np.ndarray | None = None  # [H, S, D]

    def add(self, values: dict[str, np.ndarray]) -> None:
        """Keep the queries of one run, given all outputs that were asked for."""
        node = self.node
        q = self._split(values[node.query])
        if node.rotation is not None:
            cos, sin = (values[name].astype(np.float32) for name in node.rotation)
            q = _rotate(q, *(table.reshape(-1, table.shape[-1]) for table in (cos, sin)), node)
        if self._masks is not None:
            mask = values[node.mask]
            self._masks.add(mask.reshape(-1, *mask.shape[-2:]))
        if self._q is None:
            self._q = np.empty((len(q), self._total, self._head_dim), np.float32)
        self._q[:, self._done : self._done + q.shape[1]] = q
        self._done += q.shape[1]

    def trace(self, keys: np.ndarray, values: np.ndarray) -> LayerTrace:
        """All of it, with keys and values [K, S, D]."""
        node, masks = self.node, self._masks
        spec = AttentionSpec(
            heads=len(self._q),
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            scale=node.scale or self._head_dim**-0.5,
            causal=node.causal or masks is not None,
            window=node.window or (masks.window() if masks else None),
            softcap=node.softcap,
        )
        return LayerTrace(
            layer=self._layer,
            q=self._q,
            k=np.array(keys, np.float32),
            v=np.array(values, np.float32),
            spec=spec,
            sinks=node.sinks,
            slopes=masks.slopes(len(self._q)) if masks else None,
        )

    def _split(self, x: np.ndarray) -> np.ndarray:
        """The queries [H, L, D] in what a node takes."""
        if x.ndim == 4:
            return x[0].astype(np.float32)
        parts = x[0].reshape(x.shape[1], -1, self._head_dim)  # [L, H or H + 2·K, D]
        heads = parts.shape[1] - (2 * self._kv_heads if self.node.packed else 0)
        return parts[:, :heads].transpose(1, 0, 2).astype(np.float32)


def _rotate(q: np.ndarray, cos: np.ndarray, sin: np.ndarray, node: Node) -> np.ndarray:
    """Turn q [H, L, D] by cos and sin [L, dims/2] (arXiv:2104.09864)."""
    half = cos.shape[-1]
    ends = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    if not node.interleaved:
        ends = slice(0, half), slice(half, 2 * half)
    x, y = (q[..., end] for end in ends)
    turned = q.copy()
    turned[..., ends[0]], turned[..., ends[1]] = x * cos - y * sin, y * cos + x * sin
    return turned


class _Caches:
    """Caches that also take what `watched` layers ask for; good for one prefill."""

    def __init__(self, caches: Caches, watched: list[_Watched]) -> None:
        self._caches, self._watched = caches, watched
        self._names = list(dict.fromkeys(name for w in watched for name in w.node.outputs))

    def reserve(self, length: int) -> None:
        self._caches.reserve(length)

    def bind(self, binding: ort.IOBinding) -> None:
        self._caches.bind(binding)
        for name in self._names:
            binding.bind_output(name, "cpu")

    def take(self, binding: ort.IOBinding) -> None:
        self._caches.take(binding)
        if self._names:
            outputs = binding.get_outputs()[-len(self._names) :]
            values = {n: v.numpy() for n, v in zip(self._names, outputs, strict=True)}
            for layer in self._watched:
                layer.add(values)

    def layers(self, length: int) -> Iterator[Layer]:
        return self._caches.layers(length)
