"""OpenVINO GenAI as a contestant: its LLMPipeline, with its own defaults but for the threads.

The pipeline runs whole replies, so the times are those of its own performance metrics. It keeps
the KV cache of earlier prompts: a prompt whose prefill is timed begins with a token of its own.
"""

from collections.abc import Sequence
from importlib.metadata import version
from itertools import count as counting
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from worker_loop import Steps, serve

_FIRST = counting(1000)  # token ids that no earlier prompt began with


class OpenVino:
    def load(self, model: str, threads: int, capacity: int) -> dict[str, str | int]:
        self._model, self._options = model, {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", **self._options)
        graph = openvino.Core().read_model(Path(model) / "openvino_model.xml")
        return {
            "version": f"openvino-genai {version('openvino-genai')}",
            # one byte a number is its default; the scales, which it adds, are not counted
            "kv_bytes_per_token": sum(map(_row_size, graph.get_sinks())),
        }

    def open(self) -> None:
        """For `logits` alone: the graph itself, as the pipeline compiles it."""

    def first(self, tokens: list[int]) -> dict[str, Any]:
        """The seconds from the prompt to the first token."""
        metrics, _ = self._generate([next(_FIRST), *tokens[1:]], 1)
        return {"seconds": metrics.get_ttft().mean / 1000}

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        self.first(tokens[: max(len(tokens) // 8, 1)])
        return self.first(tokens)

    def decode(self, tokens: list[int], count: int) -> dict[str, Any]:
        metrics, chosen = self._generate(tokens, count + 1)
        times = metrics.raw_metrics.m_new_token_times  # milliseconds, one for each token
        return {"seconds": (times[-1] - times[0]) / 1000, "tokens": chosen}

    def _generate(self, tokens: Sequence[int], count: int) -> tuple[Any, list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = count, False, True
        prompt = openvino.Tensor(np.array([tokens], dtype=np.int64))
        results = self._pipeline.generate(prompt, config)
        return results.perf_metrics, list(results.tokens[0])

    def quality(self, **request: Any) -> dict[str, Any]:
        graph = openvino.Core().compile_model(
            Path(self._model) / "openvino_model.xml", "CPU", self._options
        )
        self._request, self._length = graph.create_infer_request(), 0
        return Steps(self).quality(**request)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        length = self._length + len(tokens)
        self._request.infer(
            {
                "input_ids": np.array([tokens], dtype=np.int64),
                "attention_mask": np.ones((1, length), dtype=np.int64),
                "position_ids": np.arange(self._length, length)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
        )
        self._length = length
        return self._request.get_tensor("logits").data[0].copy()


def _row_size(sink: Any) -> int:
    """Numbers that one token adds to the state that `sink` keeps: [B, K, S, D]."""
    shape = sink.input(0).get_partial_shape()
    return shape[1].get_length() * shape[3].get_length()


if __name__ == "__main__":
    peer = OpenVino()
    serve(peer, first=peer.first, prefill=peer.prefill, decode=peer.decode, quality=peer.quality)
