"""A decoder graph opened in onnxruntime, and the contract that its inputs and outputs keep.

Inputs, int64: `input_ids` [B, L], `attention_mask` [B, S], and where the graph has it
`position_ids` [B, L]. Caches: `past_key_values.N.key/value` [B, K, ·, D] in, `present.N.key/value`
out. Output: `logits` [B, L or 1, V]; an overridable initializer `num_logits` (1: last token, 0:
all) says which. Caches that GroupQueryAttention makes are written into the buffer that was read;
any other operator returns a new, longer one.

A graph with the metadata `pippin.rope_switch` rotates sequences of more tokens otherwise, with
`pippin.rope_grows` each length of them in its own way, and takes `rotation_length`: rotate as for
a sequence of at least so many tokens.

Graphs of other exporters may call their tensors otherwise (`layouts.TensorNames`), leave K and D to
the config, give logits in float16, and be two in one: with the input `use_cache_branch`, bool [1],
they take several tokens only before there is a cache.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from .cores import physical_cores
from .errors import InputError, PippinError
from .folder import ModelFolder, runs_right
from .graph_file import KV_METADATA, MINIMUM_METADATA, ROWS_METADATA, SHORT_CALL
from .layouts import TensorNames, context_length, head_dim, kv_heads
from .memory import check_memory

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_CACHE_DTYPES = {**_DTYPES, "tensor(int8)": np.int8}
CHUNK = 256  # tokens of one prefill call; larger ones are slower in GroupQueryAttention
MERGED = "use_cache_branch"
_SHARING = "GroupQueryAttention"
# onnxruntime reads it where a session is made. On int8 caches the kernel without it is faster.
_NO_FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_ANY_LENGTH = ort.OrtValue.ortvalue_from_numpy(np.array([2**62]))  # must outlive sessions
_LOG_FATAL_ONLY = 4
_sharing_cores: ContextVar[bool] = ContextVar("sharing_cores", default=False)
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
    dtype: type  # numpy.float32, numpy.float16 or numpy.int8

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Graph:
    """An onnxruntime session and what is known of it."""

    session: ort.InferenceSession
    names: TensorNames
    past_names: tuple[str, ...]  # inputs of the 2 N caches: keys and values of each layer in turn
    present_names: tuple[str, ...]  # outputs, in the same order
    layers: tuple[LayerCache, ...]
    vocab_size: int  # V
    context: int  # tokens
    shared: bool  # past and present are one buffer
    positions: bool  # takes position_ids
    merged: bool  # takes use_cache_branch
    logits_dtype: type  # numpy.float32 or numpy.float16
    one_row: bool  # gives the last token's logits only, and cannot be asked for more
    num_logits: tuple[int, ...] | None  # shape of that initializer, where the graph has it
    rope_switch: int | None  # tokens; longer sequences are rotated otherwise
    rope_grows: bool  # and each length of them has a rotation of its own
    rows_alike: int | None  # up to so many tokens of one run, each gets the same bits as alone

    def run_length(self, past: int, all_rows: bool) -> int:
        """The most tokens of one run after `past`; `all_rows`: whose logits are all wanted."""
        if all_rows and self.one_row:
            return 1
        if self.merged:
            return 1 if past else self.context
        return CHUNK


def load_graph(
    folder: ModelFolder,
    threads: int | None = None,
    *,
    repeatable: bool = False,
    model: bytes | None = None,
) -> Graph:
    """Open the graph of `folder` on the CPU with `threads` (None: one a physical core).

    `repeatable`: on an int8 cache a token gets the same bits in calls of any length, which takes
    longer for long ones. `model` stands in for the graph's file: the same graph with more outputs.

    Raises InputError when it does not fit into memory, cannot be loaded, or does not keep the
    contract above or what the folder's config says.
    """
    check_memory(folder.weight_bytes, folder.graph.name)
    metadata = folder.metadata
    _check_release(folder, metadata.get(MINIMUM_METADATA))
    with _flash_attention(metadata.get(KV_METADATA) != "int8"):
        session = open_session(folder.graph, threads, model=model, codes_only=repeatable)
    layers = _layers(folder, session)
    pasts, presents = (_cache_names(pair, len(layers)) for pair in _patterns(folder.names))
    inputs = _inputs(folder, session, pasts)
    logits = _logits(folder, session)
    shapes = {arg.name: tuple(arg.shape) for arg in session.get_overridable_initializers()}
    merged = MERGED in inputs
    return Graph(
        session=session,
        names=folder.names,
        past_names=pasts,
        present_names=presents,
        layers=layers,
        vocab_size=_vocab_size(folder, logits),
        context=_context(folder, metadata),
        shared=not merged and _shares(folder, presents),
        positions=folder.names.position_ids in inputs,
        merged=merged,
        logits_dtype=_DTYPES[logits.type],
        one_row="num_logits" not in shapes and logits.shape[1] == 1,
        num_logits=shapes.get("num_logits"),
        rope_switch=int(metadata["pippin.rope_switch"]) if "rotation_length" in shapes else None,
        rope_grows="pippin.rope_grows" in metadata,
        rows_alike=int(metadata[ROWS_METADATA]) if ROWS_METADATA in metadata else None,
    )


@contextmanager
def _flash_attention(wanted: bool) -> Iterator[None]:
    """Whether sessions are made with it, unless the environment says so already."""
    if wanted or _NO_FLASH in os.environ:
        yield
        return
    os.environ[_NO_FLASH] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_FLASH]


@contextmanager
def sharing_cores() -> Iterator[None]:
    """Models loaded meanwhile run in turns, as a draft and what it drafts for: after a run threads
    do not spin on, which would take the other's cores (alone, that makes a step 3 % faster).
    """
    token = _sharing_cores.set(True)
    try:
        yield
    finally:
        _sharing_cores.reset(token)


def open_session(
    graph: Path,
    threads: int | None,
    *,
    once: bool = False,
    codes_only: bool = False,
    model: bytes | None = None,
) -> ort.InferenceSession:
    """A session on the CPU with `threads` (None: one a physical core). Raises InputError.

    `once`: for a run or two with little memory, nodes in their order where that is free.
    `codes_only`: calls of any length compute on the codes of an int8 cache, if there is one.
    `model` stands in for the file's content, with the data files that lie beside it.
    """
    options = ort.SessionOptions()
    if once:
        options.enable_cpu_mem_arena = False
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    if _sharing_cores.get():
        options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = _LOG_FATAL_ONLY  # errors come as exceptions already
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads or physical_cores()
    if codes_only:
        options.add_initializer(SHORT_CALL, _ANY_LENGTH)
    if model is not None:
        options.add_session_config_entry(_DATA_FOLDER, str(graph.parent))
    source = str(graph) if model is None else model
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise InputError(
            f"onnxruntime {ort.__version__} cannot load {graph} ({plain_reason(error)}); "
            "export the model again"
        ) from error


def _check_release(folder: ModelFolder, minimum: str | None) -> None:
    """Raise InputError for a release that is known to compute such a graph wrongly."""
    if not runs_right(minimum):
        raise InputError(
            f"{folder.graph} needs onnxruntime {minimum} or newer, and this is {ort.__version__}, "
            "which computes it wrongly; run: pip install --upgrade onnxruntime"
        )


@contextmanager
def plain_failures(when: str = "") -> Iterator[None]:
    """What onnxruntime raises inside becomes a PippinError of one line, which says `when`."""
    try:
        yield
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        when = when and f" {when}"
        raise PippinError(f"onnxruntime failed{when}: {plain_reason(error)}") from error


def plain_reason(error: Exception) -> str:
    """What onnxruntime complains of, without codes and places in its source."""
    text = " ".join(str(error).split())
    for noise in _NOISE:
        text = re.sub(noise, "", text)
    return f"{text:.300}".rstrip(".")


def _shares(folder: ModelFolder, presents: tuple[str, ...]) -> bool:
    """Whether caches are written in place: ours with int8 ones attend within an If."""
    ours = folder.metadata.get("pippin.dialect") == "gqa"
    return ours or {folder.operators.get(name) for name in presents} == {_SHARING}


def _patterns(names: TensorNames) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names of keys and values, going in and coming out."""
    return (
        (names.past_key_names, names.past_value_names),
        (names.present_key_names, names.present_value_names),
    )


def _cache_names(patterns: tuple[str, str], layers: int) -> tuple[str, ...]:
    return tuple(p.replace("%d", str(n)) for n in range(layers) for p in patterns)


def _inputs(folder: ModelFolder, session: ort.InferenceSession, pasts: tuple[str, ...]) -> set[str]:
    """The inputs' names, all of them known."""
    inputs = {arg.name: arg.type for arg in session.get_inputs()}
    names = folder.names
    tokens = {names.input_ids, names.attention_mask, names.position_ids}
    lacking = sorted({names.input_ids, names.attention_mask} - inputs.keys())
    _require(folder, not lacking, f"lacks {' and '.join(lacking)}")
    extra = sorted(inputs.keys() - tokens - {MERGED} - set(pasts))
    _require(folder, not extra, f"asks for unknown inputs: {', '.join(extra)}")
    for name in tokens & inputs.keys():
        right = inputs[name] == "tensor(int64)"
        _require(folder, right, f"takes {name} as {inputs[name]}, not as int64")
    return set(inputs)


def _layers(folder: ModelFolder, session: ort.InferenceSession) -> tuple[LayerCache, ...]:
    inputs = {arg.name: arg for arg in session.get_inputs()}
    outputs = {arg.name for arg in session.get_outputs()}
    layers: list[LayerCache] = []
    pasts, presents = _patterns(folder.names)
    while any(name in inputs for name in (n.replace("%d", str(len(layers))) for n in pasts)):
        names = [pattern.replace("%d", str(len(layers))) for pattern in (*pasts, *presents)]
        for past, present in zip(names[:2], names[2:], strict=True):
            paired = past in inputs and present in outputs
            _require(folder, paired, f"lacks {past} or {present}")
        key, value = (inputs[name] for name in names[:2])
        same = key.shape[1::2] == value.shape[1::2] and key.type == value.type
        _require(folder, same, f"has unlike keys and values: {key.shape} and {value.shape}")
        known = key.type in _CACHE_DTYPES
        _require(folder, known, f"has {key.type} in {names[0]}, not float, float16 or int8")
        layers.append(LayerCache(*_cache_shape(folder, key), _CACHE_DTYPES[key.type]))
    _require(folder, bool(layers), f"has no {pasts[0].replace('%d', '0')}")
    _check_config(folder, layers)
    return tuple(layers)


def _cache_shape(folder: ModelFolder, key: ort.NodeArg) -> tuple[int, int]:
    """K and D: those of the graph, the config's where the graph has only a name for them."""
    _require(folder, len(key.shape) == 4, f"has {key.shape} in {key.name}, not [B, K, S, D]")
    heads, size = key.shape[1::2]
    heads = heads if isinstance(heads, int) else kv_heads(folder.config)
    size = size if isinstance(size, int) else head_dim(folder.config)
    known = heads is not None and size is not None
    complaint = f"has no fixed K and D in {key.name}, but {key.shape}, nor has {folder.config_file}"
    _require(folder, known, complaint)
    return heads, size


def _check_config(folder: ModelFolder, layers: list[LayerCache]) -> None:
    """Compare the graph's caches with what the config says outright."""
    stated = {
        "num_hidden_layers": len(layers),
        "num_key_value_heads": layers[0].kv_heads,
        "head_dim": layers[0].head_dim,
    }
    for key, found in stated.items():
        wanted = folder.config.get(key)
        agree = not isinstance(wanted, int) or wanted == found
        _require(folder, agree, f"has {found} where {folder.config_file} says {key} = {wanted}")


def _logits(folder: ModelFolder, session: ort.InferenceSession) -> ort.NodeArg:
    name = folder.names.logits
    logits = next((arg for arg in session.get_outputs() if arg.name == name), None)
    _require(folder, logits is not None, f"has no output {name}")
    _require(folder, logits.type in _DTYPES, f"has {logits.type} logits, not float or float16")
    _require(folder, len(logits.shape) == 3, f"has logits {logits.shape}, not [B, L, V]")
    return logits


def _vocab_size(folder: ModelFolder, logits: ort.NodeArg) -> int:
    stated = folder.config.get("vocab_size")
    size = logits.shape[-1] if isinstance(logits.shape[-1], int) else stated
    _require(folder, isinstance(size, int), "has no fixed vocabulary size")
    agree = not isinstance(stated, int) or stated == size
    _require(folder, agree, f"has {size} where {folder.config_file} says vocab_size = {stated}")
    return size


def _context(folder: ModelFolder, metadata: dict[str, str]) -> int:
    stated: Any = metadata.get("pippin.context") or context_length(folder.config)
    try:
        return int(stated)
    except (TypeError, ValueError):
        raise InputError(
            f"{folder.graph} states no context: neither pippin.context in its metadata nor "
            f"max_position_embeddings in {folder.config_file}; export the model again"
        ) from None


def _require(folder: ModelFolder, holds: bool, complaint: str) -> None:
    if not holds:
        raise InputError(f"{folder.graph} {complaint}; export the model again")
