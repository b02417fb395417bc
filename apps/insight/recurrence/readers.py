"""The two graphs in onnxruntime, bound to buffers alike, so that calls cost both the same."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from .networks import (
    CONTEXT,
    DECODER_LAYERS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LSTM_LAYERS,
    VOCAB_SIZE,
)


class Reader(ABC):
    """One text, B = 1: what was read so far is kept from call to call."""

    def __init__(self, session: ort.InferenceSession):
        self._session = session
        self._ids = np.zeros((1, CONTEXT), np.int64)
        self._logits = np.zeros((1, 1, VOCAB_SIZE), np.float32)
        self._read = 0  # tokens
        self._bound = 0  # tokens of a call that the inputs are bound for

    def start(self) -> None:
        """Forget what was read."""
        self._read = 0

    def read(self, ids: Sequence[int]) -> np.ndarray:
        """Read up to CONTEXT tokens in one call; the last one's logits [V], until the next call."""
        count = len(ids)
        self._ids[0, :count] = ids
        if count != self._bound:
            for binding in self._bindings():
                _bind_input(binding, "input_ids", self._ids, (1, count))
            self._bound = count
        binding = self._next(count)
        self._session.run_with_iobinding(binding)
        self._read += count
        return self._logits[0, 0]

    @abstractmethod
    def _bindings(self) -> Sequence[ort.IOBinding]:
        """All that are used in turn."""

    @abstractmethod
    def _next(self, count: int) -> ort.IOBinding:
        """The binding for the next call, of `count` tokens."""

    def _new_binding(self) -> ort.IOBinding:
        binding = self._session.io_binding()
        _bind_output(binding, "logits", self._logits)
        return binding


class LstmReader(Reader):
    """Two states take turns: what one call writes, the next reads."""

    def __init__(self, session: ort.InferenceSession):
        super().__init__(session)
        names = [f"{kind}.{n}" for n in range(LSTM_LAYERS) for kind in ("hidden", "cell")]
        # The first is what a text begins with, and is never written.
        self._states = [[np.zeros((1, 1, HIDDEN), np.float32) for _ in names] for _ in range(3)]
        self._turns = []
        for before, after in ((0, 1), (1, 2), (2, 1)):
            binding = self._new_binding()
            for name, old, new in zip(
                names, self._states[before], self._states[after], strict=True
            ):
                _bind_input(binding, f"past_{name}", old, old.shape)
                _bind_output(binding, f"present_{name}", new)
            self._turns.append(binding)
        self._turn = 0

    def start(self) -> None:
        super().start()
        self._turn = 0

    def _bindings(self) -> Sequence[ort.IOBinding]:
        return self._turns

    def _next(self, count: int) -> ort.IOBinding:
        binding = self._turns[self._turn]
        self._turn = 2 if self._turn == 1 else 1
        return binding


class DecoderReader(Reader):
    """Keys and values are written into the buffers that they are read from."""

    def __init__(self, session: ort.InferenceSession):
        super().__init__(session)
        self._mask = np.ones((1, CONTEXT), np.int64)
        self._binding = self._new_binding()
        self._caches = []
        for layer in range(DECODER_LAYERS):
            for part in ("key", "value"):
                cache = np.zeros((1, HEADS, CONTEXT, HEAD_DIM), np.float32)
                self._caches.append(cache)
                _bind_input(self._binding, f"past_key_values.{layer}.{part}", cache, cache.shape)
                _bind_output(self._binding, f"present.{layer}.{part}", cache)

    def _bindings(self) -> Sequence[ort.IOBinding]:
        return [self._binding]

    def _next(self, count: int) -> ort.IOBinding:
        _bind_input(self._binding, "attention_mask", self._mask, (1, self._read + count))
        return self._binding


def _bind_input(
    binding: ort.IOBinding, name: str, array: np.ndarray, shape: tuple[int, ...]
) -> None:
    """Bind the first numbers of `array`, which the caller keeps alive."""
    binding.bind_input(name, "cpu", 0, array.dtype, shape, array.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, array: np.ndarray) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
