"""The onnxruntime engine: an exported folder behind the engine protocol."""

from pathlib import Path
from types import ModuleType

import numpy as np

from .cache_file import CacheFile
from .engine import EngineInfo, check_room
from .folder import ModelFolder, open_folder
from .memory import check_memory
from .ort_graph import load_graph
from .ort_session import OrtSession


class OrtEngine:
    """A graph ready to open sessions; fulfils `runtime.engine.Engine`."""

    xp: ModuleType = np

    def __init__(self, folder: ModelFolder, threads: int | None = None) -> None:
        """Load the graph of `folder` with `threads` (None: one a physical core).

        Raises InputError when it does not fit into memory or cannot be used.
        """
        self._graph = load_graph(folder, threads)
        self.info = EngineInfo(
            backend="onnx",
            model=folder.path.resolve().name,
            fingerprint=f"onnx-{folder.weights}-{folder.fingerprint()}",
            vocab_size=self._graph.vocab_size,
            context=self._graph.context,
            weight_bytes=folder.weight_bytes,
            kv_bytes_per_token=sum(layer.bytes_per_token for layer in self._graph.layers),
        )

    @classmethod
    def from_folder(
        cls, path: Path | str, *, weights: str | None = None, threads: int | None = None
    ) -> "OrtEngine":
        """The engine of an exported folder; `weights` as `folder.open_folder` has it."""
        return cls(open_folder(path, weights), threads)

    def memory_needed(self, length: int) -> int:
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> OrtSession:
        session = OrtSession(self._graph, self.info)
        if capacity is not None:
            check_room(0, capacity, self.info.context)
            check_memory(self.memory_needed(capacity), f"a KV cache of {capacity} tokens")
            session.reserve(capacity)
        return session

    def restore(self, path: Path) -> tuple[OrtSession, list[int]]:
        with CacheFile(path, self.info.fingerprint) as file:
            session = self.open(len(file.tokens))
            session.load(file)
            return session, file.tokens
