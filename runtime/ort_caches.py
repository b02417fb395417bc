"""Where the keys and values of one sequence live between two runs of a graph.

`SharedCaches` for graphs that write into the buffer they read, `GrowingCaches` for graphs that
return past and new together. Both keep [1, K, ·, D] for each of N layers, keys and values apart.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import onnxruntime as ort

from .memory import available_bytes, check_memory
from .ort_graph import Graph, LayerCache

STEP = 256  # tokens by which capacity is rounded up

Layer = tuple[np.ndarray, np.ndarray]  # keys and values [K, S, D]


class Caches(Protocol):
    """What a session asks of either kind."""

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, up to the context; InputError when memory is short."""

    def bind(self, binding: ort.IOBinding) -> None:
        """Bind pasts and presents for the next run; `logits` is already bound."""

    def take(self, binding: ort.IOBinding) -> None:
        """Keep what the run has left in the presents."""

    def truncate(self, length: int) -> None:
        """Drop what stands after the first `length` tokens."""

    def fork(self, length: int) -> "Caches":
        """An independent copy of the first `length` tokens."""

    def layers(self, length: int) -> Iterator[Layer]:
        """The first `length` tokens of each layer, to be written to disk."""

    def put(self, index: int, layer: Layer) -> None:
        """Set the first tokens of layer `index`, for which room has been reserved."""


class SharedCaches:
    """Preallocated buffers, bound once as past and present alike; they grow by doubling."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._capacity = 0
        self._buffers = [_zeros(layer, 0) for layer in graph.layers for _ in range(2)]
        self._bound: ort.IOBinding | None = None

    def reserve(self, length: int) -> None:
        if length <= self._capacity:
            return
        per_token = sum(layer.bytes_per_token for layer in self._graph.layers)
        doubled = -(-max(length, 2 * self._capacity) // STEP) * STEP
        capacity = min(doubled, self._graph.context)
        available = available_bytes()
        if available is not None and (capacity - self._capacity) * per_token > available:
            capacity = length  # not a byte more than needed
        check_memory((capacity - self._capacity) * per_token, f"a KV cache of {capacity} tokens")
        for index, old in enumerate(self._buffers):
            # Fresh zero pages: they take memory only when tokens arrive.
            self._buffers[index] = _zeros(self._graph.layers[index // 2], capacity)
            self._buffers[index][:, :, : self._capacity] = old
        self._capacity, self._bound = capacity, None

    def bind(self, binding: ort.IOBinding) -> None:
        if self._bound is binding:
            return
        names = zip(self._graph.past_names, self._graph.present_names, strict=True)
        for (past, present), buffer in zip(names, self._buffers, strict=True):
            for bind, name in ((binding.bind_input, past), (binding.bind_output, present)):
                bind(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        self._bound = binding

    def take(self, binding: ort.IOBinding) -> None:
        pass

    def truncate(self, length: int) -> None:
        pass

    def fork(self, length: int) -> "SharedCaches":
        other = SharedCaches(self._graph)
        other.reserve(length)
        for ours, theirs in zip(self._buffers, other._buffers, strict=True):
            theirs[:, :, :length] = ours[:, :, :length]
        return other

    def layers(self, length: int) -> Iterator[Layer]:
        for keys, values in _pairs(self._buffers):
            yield keys[0, :, :length], values[0, :, :length]

    def put(self, index: int, layer: Layer) -> None:
        for buffer, part in zip(self._buffers[2 * index :], layer, strict=False):
            buffer[0, :, : part.shape[1]] = part


class GrowingCaches:
    """The presents of the last run, which are the pasts of the next; never written in place."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values = [
            ort.OrtValue.ortvalue_from_numpy(_zeros(layer, 0))
            for layer in graph.layers
            for _ in range(2)
        ]

    def reserve(self, length: int) -> None:
        pass

    def bind(self, binding: ort.IOBinding) -> None:
        for name, value in zip(self._graph.past_names, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in self._graph.present_names:
            binding.bind_output(name, "cpu")

    def take(self, binding: ort.IOBinding) -> None:
        self._values = binding.get_outputs()[1:]  # the first is `logits`

    def truncate(self, length: int) -> None:
        self._values = [
            ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[:, :, :length]))
            for value in self._values
        ]

    def fork(self, length: int) -> "GrowingCaches":
        other = GrowingCaches(self._graph)
        other._values = list(self._values)
        return other

    def layers(self, length: int) -> Iterator[Layer]:
        for keys, values in _pairs(self._values):
            yield keys.numpy()[0], values.numpy()[0]

    def put(self, index: int, layer: Layer) -> None:
        for offset, part in enumerate(layer):
            self._values[2 * index + offset] = ort.OrtValue.ortvalue_from_numpy(part[None])


def _zeros(layer: LayerCache, length: int) -> np.ndarray:
    return np.zeros((1, layer.kv_heads, length, layer.head_dim), layer.dtype)


def _pairs(items: list) -> Iterator[tuple]:
    return zip(items[::2], items[1::2], strict=True)
