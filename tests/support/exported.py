"""Exported folders for tests, and plain onnxruntime to run them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import onnx
import onnxruntime as ort

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.decoder import Decoder
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder

from .tiny import make_tiny

# Heads of 16 for GroupQueryAttention, rows of 96 and 160 for groups of 32.
SIZES = {"hidden_size": 96, "intermediate_size": 160}
CONTEXT = 256
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


def tiny_checkpoint(folder: Path, **changes: Any) -> Checkpoint:
    """A random Llama that both dialects can take."""
    return open_checkpoint(make_tiny(folder, **{**SIZES, **changes}).path)


def quantized_checkpoint(folder: Path, bits: int, group: int = 32, **changes: Any) -> Checkpoint:
    """A random Llama, quantized by MLX's own quantizer and stored as MLX stores it."""
    checkpoint = tiny_checkpoint(folder, **changes)
    decoder = load_decoder(checkpoint, mx.float32)
    nn.quantize(decoder, group_size=group, bits=bits)
    return store(checkpoint, decoder)


def store(checkpoint: Checkpoint, decoder: Decoder) -> Checkpoint:
    """Put `decoder`'s parameters in the place of the checkpoint's."""
    from mlx.utils import tree_flatten

    weights = dict(tree_flatten(decoder.parameters()))
    path = checkpoint.path / "model.safetensors"
    mx.eval(weights)
    path.unlink()
    mx.save_safetensors(str(path), weights, {"format": "pt"})
    return open_checkpoint(checkpoint.path)


def random_ids(count: int, vocab_size: int = 97, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


def mlx_logits(source: Checkpoint | Decoder, ids: list[int]) -> np.ndarray:
    """What MLX says in float32, [L, V]."""
    decoder = source if isinstance(source, Decoder) else load_decoder(source, mx.float32)
    return np.array(MlxEngine(decoder, "tiny", "0").open().verify(ids))


def difference(a: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference, relative to the largest reference value."""
    return float(np.abs(a - reference).max() / np.abs(reference).max())


def graph_path(folder: Path) -> Path:
    """The graph that every program runs; another may stand beside it, for an int8 KV cache."""
    (graph,) = (path for path in folder.glob("onnx/*.onnx") if not path.stem.endswith("_kv8"))
    return graph


def read_model(folder: Path) -> onnx.ModelProto:
    """The graph without its data files."""
    return onnx.load(graph_path(folder), load_external_data=False)


def export_and_open(checkpoint: Checkpoint, out: Path, **options: Any) -> "PlainRun":
    return PlainRun(export_folder(checkpoint, out, context=CONTEXT, **options))


class PlainRun:
    """Sequences on an exported folder; feeds each present back as past."""

    def __init__(self, folder: Path, batch: int = 1):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.session = ort.InferenceSession(str(graph_path(folder)), options, providers=providers)
        self.reset(batch)

    def reset(self, batch: int = 1) -> None:
        self._mask = np.zeros((batch, 0), np.int64)
        self._caches = self.empty_caches(batch, 0)

    def empty_caches(self, batch: int, length: int) -> dict[str, np.ndarray]:
        return {
            arg.name: np.zeros((batch, arg.shape[1], length, arg.shape[3]), _TYPES[arg.type])
            for arg in self.session.get_inputs()
            if arg.name.startswith("past_key_values.")
        }

    def __call__(
        self, ids: list[int] | np.ndarray, mask: np.ndarray | None = None, count: int | None = 0
    ) -> np.ndarray:
        """Append ids [B, L] (or [L]); logits of the last `count` rows, 0: all; None: the default.

        `mask` [B, S] tells padding, for all tokens so far.
        """
        ids = np.atleast_2d(np.asarray(ids, np.int64))
        new = np.ones(ids.shape, np.int64)
        self._mask = np.concatenate([self._mask, new], axis=1) if mask is None else mask
        feeds = {"input_ids": ids, "attention_mask": self._mask, **self._caches}
        if count is not None:
            feeds["num_logits"] = np.array([count], np.int64)
        presents = [name.replace("past_key_values", "present") for name in self._caches]
        logits, *values = self.session.run(["logits", *presents], feeds)
        self._caches = dict(zip(self._caches, values, strict=True))
        return logits
