"""onnxruntime-genai as a contestant, on a folder in its own format."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from worker_loop import serve


class Genai:
    def load(self, model: str, threads: int, capacity: int) -> dict[str, str | int]:
        config = og.Config(model)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        self._params = og.GeneratorParams(self._model)
        # After an end-of-text token it would run no more steps, only pretend to: min_length
        # keeps it from choosing one.
        self._params.set_search_options(do_sample=False, max_length=capacity, min_length=capacity)
        self.open()
        packages = ("onnxruntime-genai", "onnxruntime")
        return {
            "version": " on ".join(f"{name} {version(name)}" for name in packages),
            "kv_bytes_per_token": self._kv_bytes(Path(model)),
        }

    def open(self) -> None:
        self._generator = None  # the last one's cache goes before the next one's is made
        self._generator = og.Generator(self._model, self._params)

    def keep(self, length: int) -> None:
        if length:
            self._generator.rewind_to(length)
        else:
            self.open()

    def prefill(self, tokens: Sequence[int]) -> None:
        self._generator.append_tokens(np.array(tokens, dtype=np.int32))

    def next(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """One token a call: these graphs give the last one's logits."""
        rows = []
        for token in tokens:
            self.prefill([token])
            rows.append(self._generator.get_logits().reshape(-1).copy())
        return np.stack(rows)

    def _kv_bytes(self, folder: Path) -> int:
        """Bytes that the cache keeps for each token, all layers together."""
        decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
        keys = self._generator.get_input("past_key_values.0.key")  # [B, K, capacity, D]
        _, heads, _, head_dim = keys.shape
        return 2 * decoder["num_hidden_layers"] * heads * head_dim * keys.itemsize


if __name__ == "__main__":
    serve(Genai())
