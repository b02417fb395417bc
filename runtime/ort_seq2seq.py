"""Encoder-decoders on onnxruntime, from a folder that was exported.

Two graphs, named and fed as optimum has them. `encoder_model`: input_ids, attention_mask [B, S] →
last_hidden_state [B, S, E]. `decoder_model_merged`: input_ids [B, L], encoder_hidden_states,
encoder_attention_mask, past_key_values.N.{decoder,encoder}.{key,value} [B, H, ·, D] and
use_cache_branch [1]: without a past, the encoder's keys are made, with one they are handed on.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime as ort

from .batch import SequentialBatch
from .engine import EngineInfo
from .errors import InputError
from .folder import ModelFolder, check_data_files, open_folder
from .graph_file import read_graph_file
from .memory import check_memory
from .ort_graph import open_session, plain_failures
from .seq2seq import ENDLESS, Seq2SeqSession, banned_tokens, refuse_restore

ENCODER, DECODER = "encoder_model", "decoder_model_merged"
_PAST = "past_key_values."
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OrtSeq2SeqEngine:
    """Fulfils `runtime.engine.Engine`."""

    xp: ModuleType = np

    def __init__(self, decoder: ModelFolder, threads: int | None = None):
        """Load the decoder's graph, and the encoder's beside it, with `threads`.

        Raises InputError when they do not fit into memory or cannot be used.
        """
        path = decoder.path
        encoder = decoder.graph.with_name(decoder.graph.name.replace(DECODER, ENCODER))
        if encoder == decoder.graph or not encoder.is_file():
            raise InputError(f"{path} holds no {ENCODER}.onnx; export the model again")
        files = (encoder, *check_data_files(encoder, read_graph_file(encoder)))
        weight_bytes = decoder.weight_bytes + sum(file.stat().st_size for file in files)
        check_memory(weight_bytes, str(path))
        self.encoder = open_session(encoder, threads)
        self.decoder = open_session(decoder.graph, threads)
        config = decoder.config
        self.start_token = config.get("decoder_start_token_id")
        if not isinstance(self.start_token, int):
            raise InputError(f"{path} states no decoder_start_token_id; export the model again")
        self.banned = banned_tokens(config)
        self.empty = _empty_caches(self.decoder, path)
        metadata = self.decoder.get_modelmeta().custom_metadata_map
        self.info = EngineInfo(
            backend="onnx",
            model=decoder.path.resolve().name,
            fingerprint=f"onnx-{decoder.weights}-{decoder.fingerprint()}",
            vocab_size=self.decoder.get_outputs()[0].shape[-1],
            context=int(metadata.get("pippin.context", ENDLESS)),
            weight_bytes=weight_bytes,
            kv_bytes_per_token=sum(
                a.shape[1] * a.shape[3] * a.itemsize
                for name, a in self.empty.items()
                if ".decoder." in name
            ),
        )

    @classmethod
    def from_folder(
        cls, path: Path | str, *, weights: str | None = None, threads: int | None = None
    ) -> "OrtSeq2SeqEngine":
        """The engine of an exported folder; `weights` as `folder.open_folder` has it."""
        return cls(open_folder(path, weights), threads)

    def memory_needed(self, length: int) -> int:
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> "OrtSeq2SeqSession":
        return OrtSeq2SeqSession(self)

    def open_batch(self, slots: int, capacity: int) -> SequentialBatch:
        return SequentialBatch(self, slots, capacity)

    def restore(self, path: Path) -> tuple["OrtSeq2SeqSession", list[int]]:
        """Raises InputError: there is nothing that could be restored."""
        raise refuse_restore()


class OrtSeq2SeqSession(Seq2SeqSession):
    """The decoder's caches grow by a copy a step, as these graphs have it."""

    def __init__(self, engine: OrtSeq2SeqEngine):
        super().__init__(engine.info, engine.start_token, engine.banned)
        self._engine = engine
        self._caches = dict(engine.empty)
        self._memory = np.zeros(0)  # the encoder's output [1, S, E]

    def fork(self) -> "OrtSeq2SeqSession":
        other = OrtSeq2SeqSession(self._engine)
        other._prompt, other._reply = list(self._prompt), list(self._reply)
        other._caches, other._memory = dict(self._caches), self._memory
        return other

    def _encode(self, prompt: list[int]) -> None:
        ids = np.array([prompt], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        (self._memory,) = self._run(self._engine.encoder, ["last_hidden_state"], feeds)
        self._caches = dict(self._engine.empty)

    def _decode(self, tokens: Sequence[int], last: int) -> np.ndarray:
        cached = next(iter(self._caches.values())).shape[2] > 0
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "encoder_hidden_states": self._memory,
            "encoder_attention_mask": np.ones(self._memory.shape[:2], np.int64),
            "use_cache_branch": np.array([cached]),
            **self._caches,
        }
        presents = [name.replace(_PAST, "present.") for name in self._caches]
        logits, *values = self._run(self._engine.decoder, ["logits", *presents], feeds)
        self._caches = dict(zip(self._caches, values, strict=True))
        return logits[0, -last:]

    def _truncate(self, length: int) -> None:
        for name, cache in self._caches.items():
            if ".decoder." in name:
                self._caches[name] = np.ascontiguousarray(cache[:, :, :length])

    def _run(
        self, session: ort.InferenceSession, names: list[str], feeds: dict[str, np.ndarray]
    ) -> list[np.ndarray]:
        with plain_failures(f"after {self.length} tokens"):
            return session.run(names, feeds)


def _empty_caches(decoder: ort.InferenceSession, path: Path) -> dict[str, np.ndarray]:
    """What the first call gets as its past. Raises InputError where sizes are not fixed."""
    caches = {arg.name: arg for arg in decoder.get_inputs() if arg.name.startswith(_PAST)}
    sizes = [size for arg in caches.values() for size in arg.shape[1::2]]
    vocab_size = decoder.get_outputs()[0].shape[-1]
    if not caches or not all(isinstance(size, int) for size in (*sizes, vocab_size)):
        raise InputError(
            f"{path} has a decoder without caches of fixed heads and sizes; export the checkpoint "
            "with `pippin export`"
        )
    return {
        name: np.zeros((1, arg.shape[1], 0, arg.shape[3]), _TYPES[arg.type])
        for name, arg in caches.items()
    }


def is_exported_seq2seq(path: Path | str) -> bool:
    """Whether `path` is a folder that an encoder-decoder was exported to."""
    return any((Path(path) / "onnx").glob(f"{ENCODER}*.onnx"))
