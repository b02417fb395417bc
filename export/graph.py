"""From a decoder to a `.onnx` file and its data files: the forward runs once and leaves a graph."""

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from onnx import TensorProto

from ..mlx_model.config import ModelConfig
from ..mlx_model.decoder import Decoder
from ..runtime.layouts import int8_cache_path
from .base_ops import Inputs, LayerCache, OnnxOps
from .builder import GraphBuilder, Value
from .external_data import ExternalData
from .gqa_ops import GqaOps
from .int8_cache import quantize_cache
from .requirements import minimum_onnxruntime
from .sampling_head import add_sampling_head
from .settings import PORTABLE, QUICK, Settings
from .standard_ops import StandardOps

Progress = Callable[[int, int], None]  # bytes of the checkpoint's weights: done, total

_OPS: dict[str, type[OnnxOps]] = {"gqa": GqaOps, "standard": StandardOps}
# Opset, and the lowest IR version that ONNX's version table allows with it.
VERSIONS = {"gqa": (21, 10), "standard": (23, 11)}


def write_graph(
    decoder: Decoder,
    path: Path,
    settings: Settings,
    progress: Progress | None = None,
    calibration: Sequence[Sequence[int]] = (),
) -> list[Path]:
    """Write the graph to `path`; returns the data files beside it, in order.

    `calibration`: the sequences of ids that an int8 cache gets its scales from.

    The decoder is used up: a weight is let go as soon as it has been written, so that no more
    than the checkpoint itself is held. Raises InputError for weights that float16 cannot hold and
    OSError when the disk is full.
    """
    with ExternalData(path) as data:
        graph = GraphBuilder(data)
        switch = _rope_switch(decoder, settings)
        _build(graph, decoder, settings, switch, progress)
    opset, ir_version = VERSIONS[settings.dialect]
    metadata = _metadata(decoder.config, settings, switch)
    model = graph.model(opset, ir_version, metadata, variant=PORTABLE)
    path.write_bytes(model.SerializeToString(deterministic=True))
    if settings.kv == "int8" or settings.outliers is not None:
        quick = graph.model(opset, ir_version, metadata, variant=QUICK)
        place = path if settings.kv == "int8" else int8_cache_path(path)
        quantize_cache(quick, path, decoder.config, settings, calibration)
        place.write_bytes(quick.SerializeToString(deterministic=True))
    return data.files


def _rope_switch(decoder: Decoder, settings: Settings) -> int | None:
    """The length within the context beyond which sequences rotate otherwise, if there is one."""
    switch = decoder.config.rope_switch
    return switch if switch is not None and switch < settings.context else None


def _metadata(config: ModelConfig, settings: Settings, switch: int | None) -> dict[str, str]:
    """What the engine, and anyone who meets the file alone, should know of the graph."""
    switches = {} if switch is None else {"pippin.rope_switch": str(switch)}
    if switches and config.rope_grows:
        switches["pippin.rope_grows"] = "true"
    return {
        **switches,
        "pippin.dialect": settings.dialect,
        "pippin.weights": settings.weights,
        "pippin.context": str(settings.context),
        "pippin.exact": str(settings.exact).lower(),
        "pippin.minimum_onnxruntime": minimum_onnxruntime(config, settings),
    }


def _build(
    graph: GraphBuilder,
    decoder: Decoder,
    settings: Settings,
    switch: int | None,
    progress: Progress | None,
) -> None:
    int64, config = TensorProto.INT64, decoder.config
    inputs = Inputs(
        ids=graph.input("input_ids", int64, ["batch_size", "sequence_length"]),
        attention_mask=graph.input(
            "attention_mask", int64, ["batch_size", "total_sequence_length"]
        ),
        num_logits=graph.overridable("num_logits", np.array([1], dtype=np.int64)),
        rotation_length=None
        if switch is None
        else graph.overridable("rotation_length", np.array([0], dtype=np.int64)),
    )
    kv = ("batch_size", config.kv_heads, "past_sequence_length", config.head_dim)
    caches = []
    for index in range(config.layers):
        names = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
        caches.append(LayerCache(index, *(graph.input(n, settings.dtype, kv) for n in names)))
    release = Release(decoder, progress)
    logits = decoder(
        _OPS[settings.dialect](graph, decoder, settings, inputs, release), inputs.ids, caches
    )
    # One row is what onnxruntime-genai must read here: it binds a buffer of the stated shape, and
    # one of sequence_length rows to any other. More rows come in buffers that are not bound.
    graph.output("logits", logits, ["batch_size", 1, config.vocab_size])
    kv = ("batch_size", config.kv_heads, "total_sequence_length", config.head_dim)
    for cache in caches:
        for name in (cache.present_key, cache.present_value):
            graph.output(name, Value(name, settings.dtype), kv)
    if settings.sampling:
        add_sampling_head(graph, Value("logits", logits.dtype), config.vocab_size)


class Release:
    """Takes the weights out of layers that have been written, and reports how far that is."""

    def __init__(self, model: nn.Module, progress: Progress | None):
        self._total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
        self._done = 0
        self._progress = progress

    def __call__(self, layer: nn.Module) -> None:
        arrays = [layer.pop(name) for name in ("weight", "scales", "biases") if name in layer]
        self._done += sum(array.nbytes for array in arrays)
        del arrays
        mx.clear_cache()
        if self._progress is not None:
            self._progress(self._done, self._total)
