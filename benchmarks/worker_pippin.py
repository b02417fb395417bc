"""Pippin as a contestant, by the engine protocol, as `runtime.generator` uses it."""

from collections.abc import Sequence

from worker_loop import serve

import pippin
from pippin.apps.models import load_generator
from pippin.runtime.engine import Array


class Pippin:
    def load(self, model: str, threads: int, capacity: int, backend: str) -> dict[str, str | int]:
        threads = threads if backend == "onnx" else None  # MLX has no such setting
        self._engine = load_generator(model, backend, threads=threads, fetch=False).engine
        self._capacity = capacity
        return {
            "version": f"pippin {pippin.__version__}",
            "kv_bytes_per_token": self._engine.info.kv_bytes_per_token,
        }

    def open(self) -> None:
        self._session = self._tokens = None  # the last one's cache goes before the next is made
        self._session = self._engine.open(self._capacity)

    def prefill(self, tokens: Sequence[int]) -> None:
        self._logits = self._session.prefill(tokens)

    def next(self) -> int:
        if self._tokens is None:
            self._tokens = self._session.decode(self._logits, self._choose)
        return next(self._tokens)

    def _choose(self, logits: Array, _: int) -> Array:
        xp = self._engine.xp
        return xp.argmax(logits).astype(xp.int32)


if __name__ == "__main__":
    serve(Pippin())
