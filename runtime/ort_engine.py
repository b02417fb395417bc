"""The onnxruntime engine: an exported folder behind the engine protocol."""

from pathlib import Path
from types import ModuleType

import numpy as np

from .batch import SequentialBatch, check_batch
from .cache_file import CacheFile
from .engine import Batch, EngineInfo, VerifyCost, check_room
from .folder import ModelFolder, open_folder
from .memory import check_memory
from .ort_batch import OrtBatch, takes_batches
from .ort_graph import load_graph
from .ort_session import OrtSession

_DEFAULT_COST = VerifyCost()
# Measured on x86 with 2 cores, SmolLM2-135M, up to 16 tokens after 64 to 6,000 keys.
_ALIKE_COST = VerifyCost(call=0.0, token=0.18, cache=1.7)
_FLOAT_COST = VerifyCost(call=0.15, token=0.06)


class OrtEngine:
    """A graph ready to open sessions; fulfils `runtime.engine.Engine`."""

    xp: ModuleType = np

    def __init__(
        self, folder: ModelFolder, threads: int | None = None, *, repeatable: bool = False
    ) -> None:
        """Load the graph of `folder` with `threads` (None: one a physical core).

        `repeatable` is for those that reuse caches: on an int8 cache, a token's logits then do not
        depend on where its text was cut into calls, to the bit. Long prompts take longer.

        Raises InputError when it does not fit into memory or cannot be used.
        """
        self.folder, self.threads = folder, threads  # for insight, which opens another graph of it
        self._graph = load_graph(folder, threads, repeatable=repeatable)
        self.info = EngineInfo(
            backend="onnx",
            model=folder.path.resolve().name,
            fingerprint=f"onnx-{folder.weights}-{folder.fingerprint()}",
            vocab_size=self._graph.vocab_size,
            context=self._graph.context,
            weight_bytes=folder.weight_bytes,
            kv_bytes_per_token=sum(layer.bytes_per_token for layer in self._graph.layers),
            rows_alike=self._graph.rows_alike is not None,
            verify_cost=_verify_cost(self._graph.rows_alike is not None, folder.weights),
        )

    @classmethod
    def from_folder(
        cls,
        path: Path | str,
        *,
        weights: str | None = None,
        kv: str | None = None,
        threads: int | None = None,
        repeatable: bool = False,
    ) -> "OrtEngine":
        """The engine of an exported folder; `weights` and `kv` as `folder.open_folder` has them."""
        return cls(open_folder(path, weights, kv), threads, repeatable=repeatable)

    def memory_needed(self, length: int) -> int:
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> OrtSession:
        session = OrtSession(self._graph, self.info)
        if capacity is not None:
            check_room(0, capacity, self.info.context)
            check_memory(self.memory_needed(capacity), f"a KV cache of {capacity} tokens")
            session.reserve(capacity)
        return session

    def open_batch(self, slots: int, capacity: int) -> Batch:
        if not takes_batches(self._graph):
            return SequentialBatch(self, slots, capacity)
        check_batch(self, slots, capacity)
        return OrtBatch(self._graph, self.info, slots, capacity)

    def restore(self, path: Path) -> tuple[OrtSession, list[int]]:
        with CacheFile(path, self.info.fingerprint) as file:
            session = self.open(len(file.tokens))
            session.load(file)
            return session, file.tokens


def _verify_cost(rows_alike: bool, weights: str) -> VerifyCost:
    if rows_alike:
        return _ALIKE_COST
    return _FLOAT_COST if weights == "fp32" else _DEFAULT_COST
