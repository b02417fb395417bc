"""Where the keys and values of one sequence live between two runs of a graph.

`SharedCaches` for graphs that write into the buffer they read, `GrowingCaches` for graphs that
return past and new together. Both keep [1, K, ·, D] for each of N layers, keys and values apart;
the buffers that are shared may hold the slots of other sequences before and behind.
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


class Buffers:
    """Preallocated arrays [slots, K, capacity, D], keys and values of each layer in turn."""

    def __init__(self, graph: Graph, slots: int = 1) -> None:
        self._graph, self._slots = graph, slots
        self.capacity = 0  # tokens a slot
        self.arrays = [self._zeros(index, 0) for index in range(2 * len(graph.layers))]

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in each slot, by doubling; InputError when memory is
        short. Then `arrays` are others.
        """
        if length <= self.capacity:
            return
        layers = self._graph.layers
        per_token = self._slots * sum(layer.bytes_per_token for layer in layers)
        doubled = -(-max(length, 2 * self.capacity) // STEP) * STEP
        capacity = min(doubled, self._graph.context)
        available = available_bytes()
        if available is not None and (capacity - self.capacity) * per_token > available:
            capacity = length  # not a byte more than needed
        where = f" in each of {self._slots} slots" if self._slots > 1 else ""
        what = f"a KV cache of {capacity} tokens{where}"
        check_memory((capacity - self.capacity) * per_token, what)
        for index, old in enumerate(self.arrays):
            # Fresh zero pages: they take memory only when tokens arrive.
            self.arrays[index] = self._zeros(index, capacity)
            self.arrays[index][:, :, : self.capacity] = old
        self.capacity = capacity

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` tokens of slot `source`."""
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def swap(self, first: int, second: int, lengths: tuple[int, int]) -> None:
        """Exchange two slots, of which the first holds `lengths[0]` tokens."""
        for array in self.arrays:
            kept = array[second, :, : lengths[1]].copy()
            array[second, :, : lengths[0]] = array[first, :, : lengths[0]]
            array[first, :, : lengths[1]] = kept

    def bind(self, binding: ort.IOBinding, slots: slice) -> None:
        """Bind some neighbouring slots as past and present alike."""
        names = zip(self._graph.past_names, self._graph.present_names, strict=True)
        for (past, present), array in zip(names, self.arrays, strict=True):
            part = array[slots]
            for bind, name in ((binding.bind_input, past), (binding.bind_output, present)):
                bind(name, "cpu", 0, part.dtype.type, part.shape, part.ctypes.data)

    def _zeros(self, index: int, length: int) -> np.ndarray:
        return _zeros(self._graph.layers[index // 2], length, self._slots)


class SharedCaches:
    """One slot of some buffers, bound once as past and present alike."""

    def __init__(self, graph: Graph, buffers: Buffers | None = None) -> None:
        self._graph = graph
        self.buffers = buffers or Buffers(graph)
        self.slot = 0
        self._bound: tuple[ort.IOBinding, int, int] | None = None  # and the slot and the capacity

    def reserve(self, length: int) -> None:
        self.buffers.reserve(length)

    def bind(self, binding: ort.IOBinding) -> None:
        wanted = (binding, self.slot, self.buffers.capacity)
        if self._bound != wanted:
            self.buffers.bind(binding, slice(self.slot, self.slot + 1))
            self._bound = wanted

    def take(self, binding: ort.IOBinding) -> None:
        pass

    def truncate(self, length: int) -> None:
        pass

    def fork(self, length: int) -> "SharedCaches":
        other = SharedCaches(self._graph)
        other.reserve(length)
        for index, layer in enumerate(self.layers(length)):
            other.put(index, layer)
        return other

    def layers(self, length: int) -> Iterator[Layer]:
        for keys, values in _pairs(self.buffers.arrays):
            yield keys[self.slot, :, :length], values[self.slot, :, :length]

    def put(self, index: int, layer: Layer) -> None:
        for array, part in zip(self.buffers.arrays[2 * index :], layer, strict=False):
            array[self.slot, :, : part.shape[1]] = part


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
        # The first is `logits`; behind the presents may stand what somebody else has bound.
        self._values = binding.get_outputs()[1 : 1 + len(self._values)]

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


def _zeros(layer: LayerCache, length: int, slots: int = 1) -> np.ndarray:
    return np.zeros((slots, layer.kv_heads, length, layer.head_dim), layer.dtype)


def _pairs(items: list) -> Iterator[tuple]:
    return zip(items[::2], items[1::2], strict=True)
