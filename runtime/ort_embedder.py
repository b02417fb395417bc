"""Texts to vectors on onnxruntime, from a folder in sentence-transformers' layout."""

from pathlib import Path
from types import ModuleType

import numpy as np

from .embedder import Embedder
from .errors import InputError
from .folder import ModelFolder, open_folder
from .memory import check_memory
from .ort_graph import open_session, plain_failures
from .recipe import MODULES, read_recipe

_OUTPUT = "last_hidden_state"


class OrtEmbedder(Embedder):
    """Fulfils `Embedder` with an exported graph."""

    backend = "onnx"
    xp: ModuleType = np

    def __init__(self, folder: ModelFolder, threads: int | None = None):
        """Load the graph of `folder` with `threads` (None: one a physical core).

        Raises InputError when it does not fit into memory or is no encoder that can be used.
        """
        check_memory(folder.weight_bytes, folder.graph.name)
        self._session = open_session(folder.graph, threads)
        self._types = "token_type_ids" in {arg.name for arg in self._session.get_inputs()}
        output = next((a for a in self._session.get_outputs() if a.name == _OUTPUT), None)
        if output is None or not isinstance(output.shape[-1], int):
            raise InputError(f"{folder.graph} has no {_OUTPUT}; it is no exported encoder")
        tokenizer = folder.path / "tokenizer.json"
        metadata = self._session.get_modelmeta().custom_metadata_map
        context = metadata.get("pippin.context") or folder.config.get("max_position_embeddings")
        if context is None:
            raise InputError(f"{folder.graph} states no context; export the model again")
        super().__init__(
            tokenizer.read_text("utf-8") if tokenizer.is_file() else "",
            read_recipe(folder.path),
            vocab_size=folder.config["vocab_size"],
            context=int(context),
            dimension=output.shape[-1],
        )

    @classmethod
    def from_folder(
        cls, path: Path | str, *, weights: str | None = None, threads: int | None = None
    ) -> "OrtEmbedder":
        """The embedder of an exported folder; `weights` as `folder.open_folder` has it."""
        return cls(open_folder(path, weights), threads)

    def hidden(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self._types:
            feeds["token_type_ids"] = np.zeros_like(ids)
        with plain_failures():
            return self._session.run([_OUTPUT], feeds)[0].astype(np.float32)


def is_exported_encoder(path: Path) -> bool:
    """Whether `path` holds an encoder's graph and no checkpoint beside it, as public folders do."""
    graphs = any((path / "onnx").glob("model*.onnx"))
    return graphs and (path / MODULES).is_file() and not any(path.glob("*.safetensors"))
