"""A decoder graph opened in onnxruntime, and the contract that its inputs and outputs keep.

Inputs, int64: `input_ids` [B, L], `attention_mask` [B, S], and where the graph has it
`position_ids` [B, L]. Caches: `past_key_values.N.key/value` [B, K, ·, D] in, `present.N.key/value`
out, with K and D as integers. Output: `logits` [B, L or 1, V] float32; an overridable initializer
`num_logits` (1: last token, 0: all) says which. A graph with the metadata `pippin.rope_switch`
rotates sequences of more tokens otherwise, and takes `rotation_length`: rotate as for a sequence of
at least so many tokens. The metadata `pippin.dialect` tells how caches are
kept: a "gqa" graph writes into the buffer that it reads; any other returns a new, longer one.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from .cores import physical_cores
from .errors import InputError
from .folder import ModelFolder
from .memory import check_memory

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_LOG_FATAL_ONLY = 4
_NOISE = (
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"^Load model from .*? failed:",
    r"/onnxruntime_src/\S+ .*?\) (?=[A-Z])",  # file, line and C++ signature
    r"\w+\.cc:\d+ \w+ ",
)


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps for each token: keys and values of K heads of D numbers."""

    kv_heads: int
    head_dim: int
    dtype: type  # numpy.float32 or numpy.float16

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Graph:
    """An onnxruntime session and what is known of it."""

    session: ort.InferenceSession
    layers: tuple[LayerCache, ...]
    vocab_size: int  # V
    context: int  # tokens
    shared: bool  # past and present are one buffer (dialect "gqa")
    positions: bool  # takes position_ids
    num_logits: tuple[int, ...] | None  # shape of that initializer, where the graph has it
    rope_switch: int | None  # tokens from which on sequences are rotated otherwise

    @property
    def cache_names(self) -> list[str]:
        """Names of the 2 N caches, without `past_key_values.` or `present.` before them."""
        return [f"{n}.{part}" for n in range(len(self.layers)) for part in ("key", "value")]


def load_graph(folder: ModelFolder, threads: int | None = None) -> Graph:
    """Open the graph of `folder` on the CPU with `threads` (None: one a physical core).

    Raises InputError when it does not fit into memory, cannot be loaded, or does not keep the
    contract above or what the folder's config says.
    """
    check_memory(folder.weight_bytes, folder.graph.name)
    session = _open_session(folder.graph, threads)
    names = {arg.name for arg in session.get_inputs()}
    _require(folder, {"input_ids", "attention_mask"} <= names, "lacks input_ids or attention_mask")
    layers = _layers(folder, session)
    metadata = session.get_modelmeta().custom_metadata_map
    known = names - {"input_ids", "attention_mask", "position_ids"}
    extra = sorted(n for n in known if not n.startswith("past_key_values."))
    _require(folder, not extra, f"asks for unknown inputs: {', '.join(extra)}")
    shapes = {arg.name: tuple(arg.shape) for arg in session.get_overridable_initializers()}
    return Graph(
        session=session,
        layers=layers,
        vocab_size=_vocab_size(folder, session),
        context=_context(folder, metadata),
        shared=metadata.get("pippin.dialect") == "gqa",
        positions="position_ids" in names,
        num_logits=shapes.get("num_logits"),
        rope_switch=int(metadata["pippin.rope_switch"]) if "rotation_length" in shapes else None,
    )


def _open_session(graph: Path, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_FATAL_ONLY  # errors come as exceptions already
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads or physical_cores()
    try:
        return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise InputError(
            f"onnxruntime {ort.__version__} cannot load {graph} ({plain_reason(error)}); "
            "export the model again"
        ) from error


def plain_reason(error: Exception) -> str:
    """What onnxruntime complains of, without codes and places in its source."""
    text = " ".join(str(error).split())
    for noise in _NOISE:
        text = re.sub(noise, "", text)
    return f"{text:.300}".rstrip(".")


def _layers(folder: ModelFolder, session: ort.InferenceSession) -> tuple[LayerCache, ...]:
    inputs = {arg.name: arg for arg in session.get_inputs()}
    outputs = {arg.name for arg in session.get_outputs()}
    layers = []
    while (name := f"past_key_values.{len(layers)}") + ".key" in inputs:
        present = f"present.{len(layers)}"
        for part in ("key", "value"):
            paired = f"{name}.{part}" in inputs and f"{present}.{part}" in outputs
            _require(folder, paired, f"lacks {name}.{part} or {present}.{part}")
        key, value = inputs[f"{name}.key"], inputs[f"{name}.value"]
        same = key.shape[1::2] == value.shape[1::2] and key.type == value.type
        _require(folder, same, f"has unlike key and value in {name}")
        _require(folder, key.type in _DTYPES, f"has {key.type} in {name}.key, not float or float16")
        heads, head_dim = key.shape[1::2]
        whole = isinstance(heads, int) and isinstance(head_dim, int)
        _require(folder, whole, f"has no fixed K and D in {name}.key, but {key.shape}")
        layers.append(LayerCache(heads, head_dim, _DTYPES[key.type]))
    _require(folder, bool(layers), "has no past_key_values.0.key")
    _check_config(folder, layers)
    return tuple(layers)


def _check_config(folder: ModelFolder, layers: list[LayerCache]) -> None:
    """Compare the graph's caches with what config.json says outright."""
    config = folder.config
    stated = {
        "num_hidden_layers": len(layers),
        "num_key_value_heads": layers[0].kv_heads,
        "head_dim": layers[0].head_dim,
    }
    for key, found in stated.items():
        wanted = config.get(key)
        agree = not isinstance(wanted, int) or wanted == found
        _require(folder, agree, f"has {found} where config.json says {key} = {wanted}")


def _vocab_size(folder: ModelFolder, session: ort.InferenceSession) -> int:
    logits = next((arg for arg in session.get_outputs() if arg.name == "logits"), None)
    _require(folder, logits is not None, "has no output logits")
    _require(folder, logits.type == "tensor(float)", f"has {logits.type} logits, not float32")
    size = logits.shape[-1]
    if not isinstance(size, int):
        size = folder.config.get("vocab_size")
    _require(folder, isinstance(size, int), "has no fixed vocabulary size")
    return size


def _context(folder: ModelFolder, metadata: dict[str, str]) -> int:
    stated: Any = metadata.get("pippin.context") or folder.config.get("max_position_embeddings")
    try:
        return int(stated)
    except (TypeError, ValueError):
        raise InputError(
            f"{folder.graph} states no context: neither pippin.context in its metadata nor "
            "max_position_embeddings in config.json; export the model again"
        ) from None


def _require(folder: ModelFolder, holds: bool, complaint: str) -> None:
    if not holds:
        raise InputError(f"{folder.graph} {complaint}; export the model again")
