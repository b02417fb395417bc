"""Pippin as a contestant, by the engine protocol, as `runtime.generator` uses it."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from worker_loop import serve
from worker_quality import write_reference

import pippin
from pippin.apps.models import load_generator
from pippin.runtime.engine import Array, Session
from pippin.runtime.sampling import SamplingParams


class Pippin:
    def load(self, model: str, threads: int, capacity: int, backend: str) -> dict[str, str | int]:
        threads = threads if backend == "onnx" else None  # MLX has no such setting
        self._generator = load_generator(model, backend, threads=threads, fetch=False)
        self._engine, self._capacity = self._generator.engine, capacity
        return {
            "version": f"pippin {pippin.__version__}",
            "kv_bytes_per_token": self._engine.info.kv_bytes_per_token,
        }

    def open(self) -> None:
        self._session = self._tokens = None  # the last one's cache goes before the next is made
        self._session = self._engine.open(self._capacity)

    def keep(self, length: int) -> None:
        if self._tokens is not None:
            self._tokens.close()
        self._tokens = None
        self._session.rollback(length)

    def prefill(self, tokens: Sequence[int]) -> None:
        self._logits = self._session.prefill(tokens)

    def next(self) -> int:
        if self._tokens is None:
            self._tokens = self._session.decode(self._logits, self._choose)
        return next(self._tokens)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """A single token takes the way of decoding."""
        if len(tokens) == 1:
            return np.array(self._session.step(tokens[0]))[None]
        return np.array(self._session.verify(tokens))

    def reference(self, tokens: list[int], path: str, piece: int) -> dict[str, Any]:
        """Write the logits that the others' are compared with."""
        self.open()
        return write_reference(self.logits, tokens, path, piece)

    def batch(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Seconds of `count` steps for the first prompt alone, and for all of them together."""
        session = self._engine.open(len(prompts[0]) + count + 1)
        alone, chosen = self._steps_alone(session, prompts[0], count)
        batch = self._engine.open_batch(len(prompts), max(map(len, prompts)) + count + 1)
        sessions = [batch.open() for _ in prompts]
        logits = [s.prefill(tokens) for s, tokens in zip(sessions, prompts, strict=True)]
        tokens = [int(self._choose(row, 0)) for row in logits]
        first, start = [tokens[0]], time.perf_counter()
        for _ in range(count):
            logits = batch.step(sessions, tokens)
            tokens = self._engine.xp.argmax(logits, axis=-1).tolist()
            first.append(tokens[0])
        together = time.perf_counter() - start
        return {"alone": alone, "together": together, "same": first == chosen}

    def _steps_alone(
        self, session: Session, prompt: list[int], count: int
    ) -> tuple[float, list[int]]:
        tokens = session.decode(session.prefill(prompt), self._choose)
        chosen, start = [next(tokens)], time.perf_counter()
        chosen += [next(tokens) for _ in range(count)]
        seconds = time.perf_counter() - start
        tokens.close()
        return seconds, chosen

    def lookup(self, prompt: str, chat: bool, **params: Any) -> dict[str, Any]:
        """One reply by the generator; `params` are those of `SamplingParams`."""
        messages = [{"role": "user", "content": prompt}] if chat else prompt
        result = self._generator.generate(messages, SamplingParams(ignore_eos=True, **params))
        return {
            "tokens": result.tokens,
            "rate": result.stats.decode_rate,
            "drafted": result.stats.drafted_tokens,
            "accepted": result.stats.accepted_tokens,
        }

    def overhead(self, tokens: list[int], count: int) -> dict[str, Any]:
        """MLX alone: seconds a step without those of evaluating it."""
        import mlx.core as mx

        session = self._engine.open()
        token, seconds = int(self._choose(session.prefill(tokens), 0)), []
        for _ in range(count):
            start = time.perf_counter()
            chosen = self._choose(session.step(token), 0)
            seconds.append(time.perf_counter() - start)
            mx.eval(chosen)
            start = time.perf_counter()
            token = chosen.item()
            seconds[-1] += time.perf_counter() - start
        return {"seconds": sorted(seconds)[count // 2]}

    def _choose(self, logits: Array, _: int) -> Array:
        xp = self._engine.xp
        return xp.argmax(logits).astype(xp.int32)


if __name__ == "__main__":
    ours = Pippin()
    serve(
        ours, reference=ours.reference, batch=ours.batch, lookup=ours.lookup, overhead=ours.overhead
    )
