"""llama.cpp as a contestant: its C interface, without the Python class around it.

Its own defaults hold, apart from threads, context and what the contestant's name says; greedy
choice by numpy's argmax, which is faster than llama.cpp's sampler chain.
"""

import ctypes
from collections.abc import Sequence
from importlib.metadata import version

import llama_cpp
import numpy as np
from worker_loop import serve

_FLASH = {
    False: llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    True: llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}
# bits of a key's or value's number -> ggml's type; 8 bits have a scale of 16 bits for 32 numbers
_KV_TYPES = {16: llama_cpp.GGML_TYPE_F16, 8: llama_cpp.GGML_TYPE_Q8_0}
_KV_BYTES = {16: 2.0, 8: 34 / 32}


class LlamaCpp:
    def load(
        self, model: str, threads: int, capacity: int, flash: bool = False, kv_bits: int = 16
    ) -> dict[str, str | int]:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if self._model is None:
            raise RuntimeError(f"llama.cpp does not load {model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = capacity
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH[flash]
        params.type_k = params.type_v = _KV_TYPES[kv_bits]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if self._context is None:
            raise RuntimeError(f"llama.cpp makes no context of {capacity} tokens")
        self._batch = params.n_batch
        self._length = 0
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        return {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "kv_bytes_per_token": int(self._kv_values() * _KV_BYTES[kv_bits]),
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
        self._length = 0

    def keep(self, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, length, -1):
            raise RuntimeError(f"llama.cpp does not forget what is after {length} tokens")
        self._token, self._length = None, length

    def prefill(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self._batch):
            self._append(tokens[start : start + self._batch])

    def next(self) -> int:
        if self._token is not None:
            self._append([self._token])
        self._token = int(self._row(-1).argmax())
        return self._token

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, self._length + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = True
        self._run(batch, len(tokens))
        llama_cpp.llama_batch_free(batch)
        return np.stack([self._row(index).copy() for index in range(len(tokens))])

    def _append(self, tokens: Sequence[int]) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        self._run(llama_cpp.llama_batch_get_one(ids, len(tokens)), len(tokens))

    def _run(self, batch: llama_cpp.llama_batch, count: int) -> None:
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status}")
        # logits are computed lazily: wait for them here, so that prefill's time is whole
        llama_cpp.llama_synchronize(self._context)
        self._length += count

    def _row(self, index: int) -> np.ndarray:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(logits, (self._vocab_size,))


if __name__ == "__main__":
    # without this the library logs every tensor to stderr
    _silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    serve(LlamaCpp())
