"""mlx-lm as a contestant: its own `generate_step`, greedy, on a folder in its format."""

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_model
from worker_loop import serve


class MlxLm:
    def load(self, model: str, threads: int, capacity: int) -> dict[str, str | int]:
        """MLX has no setting for threads, and its caches grow."""
        self._model, config = load_model(Path(model))
        if mx.default_device() == mx.Device(mx.cpu):
            self._model.set_dtype(mx.float32)  # as Pippin: half precision is slow there
        mx.eval(self._model.parameters())
        kind = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.float16
        values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"]
        return {
            "version": f"mlx-lm {version('mlx-lm')}",
            "kv_bytes_per_token": values * config["head_dim"] * kind.size,
        }

    def open(self) -> None:
        self._cache = make_prompt_cache(self._model)

    def keep(self, length: int) -> None:
        self._steps.close()
        trim_prompt_cache(self._cache, self._cache[0].offset - length)

    def prefill(self, tokens: Sequence[int]) -> None:
        """To the first token, which it chooses at once."""
        self._steps = generate_step(
            mx.array(tokens), self._model, max_tokens=-1, prompt_cache=self._cache
        )
        self._first: int | None = next(self._steps)[0]

    def next(self) -> int:
        token, self._first = self._first, None
        return next(self._steps)[0] if token is None else token

    def overhead(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Seconds a step without those of evaluating it."""
        cache = make_prompt_cache(self._model)
        token = mx.argmax(self._model(mx.array([tokens]), cache=cache)[:, -1], axis=-1)
        mx.eval(token)
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            token = mx.argmax(self._model(token[None], cache=cache)[:, -1], axis=-1)
            seconds.append(time.perf_counter() - start)
            mx.eval(token)
        return {"seconds": sorted(seconds)[count // 2]}


if __name__ == "__main__":
    peer = MlxLm()
    serve(peer, overhead=peer.overhead)
