"""An engine without a model: its KV cache is the list of tokens, its logits a function of them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pippin.runtime.batch import SequentialBatch
from pippin.runtime.engine import Choose, EngineInfo, check_room, check_tokens
from pippin.runtime.errors import Cancelled, InputError

Model = Callable[[list[int]], np.ndarray]  # tokens so far -> logits [V] of the next one


def scripted(reply: Sequence[int], prompt: int, vocab_size: int) -> Model:
    """A model that is certain of `reply` after `prompt` tokens, then of its last token for ever."""

    def model(tokens: list[int]) -> np.ndarray:
        place = min(max(len(tokens) - prompt, 0), len(reply) - 1)
        return np.where(np.arange(vocab_size) == reply[place], 20.0, 0.0).astype(np.float32)

    return model


def hashed(vocab_size: int, spread: float = 3.0) -> Model:
    """A model whose logits look random, and depend on every token so far."""

    def model(tokens: list[int]) -> np.ndarray:
        rng = np.random.default_rng([len(tokens), *tokens])
        return (spread * rng.standard_normal(vocab_size)).astype(np.float32)

    return model


class FakeEngine:
    """Fulfils `runtime.engine.Engine`; `prefilled` counts the tokens that went through prefill."""

    xp = np

    def __init__(self, model: Model, vocab_size: int, context: int = 512, chunk: int = 16):
        self.model, self.chunk = model, chunk
        self.prefilled = 0
        self.info = EngineInfo("onnx", "fake", "fake-1", vocab_size, context, 1, 8)

    def memory_needed(self, length: int) -> int:
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> "FakeSession":
        return FakeSession(self, [])

    def open_batch(self, slots: int, capacity: int) -> SequentialBatch:
        return SequentialBatch(self, slots, capacity)

    def restore(self, path: Path) -> tuple["FakeSession", list[int]]:
        saved = json.loads(Path(path).read_text())
        if saved["fingerprint"] != self.info.fingerprint:
            raise InputError(f"{path} belongs to another model")
        return FakeSession(self, saved["tokens"]), saved["tokens"]


class FakeSession:
    """Fulfils `runtime.engine.Session`; `tokens` is what its KV cache would stand for."""

    def __init__(self, engine: FakeEngine, tokens: list[int]):
        self._engine = engine
        self.tokens = list(tokens)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def prefill(self, tokens, *, progress=None, should_stop=None) -> np.ndarray:
        self._check(tokens)
        for start in range(0, len(tokens), self._engine.chunk):
            if should_stop is not None and should_stop():
                raise Cancelled("prefill was stopped")
            part = tokens[start : start + self._engine.chunk]
            self.tokens += part
            self._engine.prefilled += len(part)
            if progress is not None:
                progress(start + len(part), len(tokens))
        return self._engine.model(self.tokens)

    def step(self, token: int) -> np.ndarray:
        self._check([token])
        self.tokens.append(token)
        return self._engine.model(self.tokens)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        return np.stack([self.step(token) for token in tokens])

    def verifiable(self, length: int, count: int) -> int:
        return min(count, self._engine.info.context - length)

    def decode(self, logits: np.ndarray, choose: Choose) -> Iterator[int]:
        """Runs one step ahead of the caller, as an engine on a device does."""
        start, known = self.length, 0
        token = int(choose(logits, 0))
        try:
            while True:
                following = None
                if token >= 0 and self.length < self._engine.info.context:
                    following = int(choose(self.step(token), known + 1))
                yield token
                if following is None:
                    self._check([token])
                known, token = known + 1, following
        finally:
            self.rollback(start + known)

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back from {self.length} tokens to {length}")
        del self.tokens[length:]

    def fork(self) -> "FakeSession":
        return FakeSession(self._engine, self.tokens)

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        assert list(tokens) == self.tokens
        saved = {"fingerprint": self._engine.info.fingerprint, "tokens": self.tokens}
        Path(path).write_text(json.dumps(saved))

    def _check(self, tokens: Sequence[int]) -> None:
        check_tokens(tokens, self._engine.info.vocab_size)
        check_room(self.length, len(tokens), self._engine.info.context)
