"""llama.cpp as a contestant: its C interface, without the Python class around it.

Its own defaults hold, apart from threads and context; greedy choice by numpy's argmax, which
is faster than llama.cpp's sampler chain.
"""

import ctypes
from collections.abc import Sequence
from importlib.metadata import version

import llama_cpp
import numpy as np
from worker_loop import serve


class LlamaCpp:
    def load(self, model: str, threads: int, capacity: int) -> dict[str, str | int]:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if self._model is None:
            raise RuntimeError(f"llama.cpp does not load {model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = capacity
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if self._context is None:
            raise RuntimeError(f"llama.cpp makes no context of {capacity} tokens")
        self._batch = params.n_batch
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        return {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "kv_bytes_per_token": self._kv_values() * 2,  # half precision is its default
        }

    def _kv_values(self) -> int:
        """Numbers that the cache keeps for each token, all layers together."""
        layers, heads = (
            count(self._model)
            for count in (llama_cpp.llama_model_n_layer, llama_cpp.llama_model_n_head)
        )
        head_dim = llama_cpp.llama_model_n_embd(self._model) // heads
        return 2 * layers * llama_cpp.llama_model_n_head_kv(self._model) * head_dim

    def open(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        self._token: int | None = None

    def prefill(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self._batch):
            self._append(tokens[start : start + self._batch])

    def next(self) -> int:
        if self._token is not None:
            self._append([self._token])
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        self._token = int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
        return self._token

    def _append(self, tokens: Sequence[int]) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(ids, len(tokens))
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status}")
        # logits are computed lazily: wait for them here, so that prefill's time is whole
        llama_cpp.llama_synchronize(self._context)


if __name__ == "__main__":
    # without this the library logs every tensor to stderr
    _silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    serve(LlamaCpp())
