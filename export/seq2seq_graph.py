"""From an encoder-decoder to two `.onnx` files, named and fed as optimum has them.

The decoder's graph serves the first call and all further ones: an If makes the keys and values of
the encoder's output where there is no past, and hands them on where there is one.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.nn as nn
from onnx import TensorProto

from ..mlx_model.encoder_config import StackConfig
from ..mlx_model.seq2seq import Seq2Seq
from ..runtime.ort_seq2seq import DECODER, ENCODER
from .base_ops import Inputs
from .builder import GraphBuilder, Value
from .encoder_graph import TOKENS, as_float32, save
from .external_data import ExternalData
from .graph import Progress, Release
from .settings import Settings
from .stack_ops import CrossCache, DecoderOps, EncoderLayer, OnnxStackOps, StackCache

_ENCODED = ["batch_size", "encoder_sequence_length"]


def write_seq2seq(
    model: Seq2Seq, folder: Path, settings: Settings, progress: Progress | None = None
) -> dict[str, int]:
    """Write both graphs into `folder`; the number of data files of each, by its name.

    The model is used up, as by `write_graph`. Raises InputError for weights that float16 cannot
    hold and OSError when the disk is full.
    """
    release, counts = Release(model, progress), {}
    for stem, build in ((ENCODER, _build_encoder), (DECODER, _build_decoder)):
        path = folder / f"{stem}{settings.suffix}.onnx"
        with ExternalData(path) as data:
            graph = GraphBuilder(data)
            build(graph, model, settings, release)
        save(graph, path, settings, stem)
        counts[path.name] = len(data.files)
    return counts


def _build_encoder(
    graph: GraphBuilder, model: Seq2Seq, settings: Settings, release: Release
) -> None:
    ids, mask = (
        graph.input(name, TensorProto.INT64, TOKENS) for name in ("input_ids", "attention_mask")
    )

    def done(layer: nn.Module) -> None:
        if layer is not model.shared:  # the decoder's graph has it too
            release(layer)

    ops = OnnxStackOps(graph, model, settings, Inputs(ids, mask, None, None), done)
    stack = model.config.encoder
    hidden = model.encode(ops, ids, [EncoderLayer(index) for index in range(stack.layers)])
    hidden = as_float32(graph, ops.value(hidden))
    graph.output("last_hidden_state", hidden, [*TOKENS, stack.hidden_size])


def _build_decoder(
    graph: GraphBuilder, model: Seq2Seq, settings: Settings, release: Release
) -> None:
    config, stack = model.config, model.config.decoder
    mask = graph.input("encoder_attention_mask", TensorProto.INT64, _ENCODED)
    ids = graph.input("input_ids", TensorProto.INT64, TOKENS)
    memory = graph.input("encoder_hidden_states", TensorProto.FLOAT, [*_ENCODED, stack.hidden_size])
    pasts = [_past(graph, index, stack, settings) for index in range(stack.layers)]
    cached = graph.input("use_cache_branch", TensorProto.BOOL, [1])
    ops = DecoderOps(graph, model, settings, Inputs(ids, mask, None, None), release)
    crosses = _cross_keys(ops, model, memory, [past["encoder"] for past in pasts], cached)
    caches = [StackCache(index, *past["decoder"]) for index, past in enumerate(pasts)]
    logits = model.decode(ops, ids, caches, crosses)
    graph.output("logits", ops.value(logits), [*TOKENS, config.vocab_size])
    shape = ("batch_size", stack.heads)
    for cache, cross in zip(caches, crosses, strict=True):
        for name in cache.presents:
            value = Value(name, settings.dtype)
            graph.output(name, value, [*shape, "total_sequence_length", stack.head_dim])
        for value in (cross.key, cross.value):
            graph.output(value.name, value, [*shape, _ENCODED[1], stack.head_dim])


def _past(
    graph: GraphBuilder, index: int, stack: StackConfig, settings: Settings
) -> dict[str, list[Value]]:
    """The inputs of one layer's caches: keys and values of either side."""
    lengths = {"decoder": "past_sequence_length", "encoder": "encoder_past_sequence_length"}
    return {
        side: [
            graph.input(
                f"past_key_values.{index}.{side}.{part}",
                settings.dtype,
                ["batch_size", stack.heads, length, stack.head_dim],
            )
            for part in ("key", "value")
        ]
        for side, length in lengths.items()
    }


def _cross_keys(
    ops: DecoderOps,
    model: Seq2Seq,
    memory: Value,
    pasts: Sequence[Sequence[Value]],
    cached: Value,
) -> list[CrossCache]:
    """Each layer's keys and values of the encoder's output, made once for all calls."""
    graph, dtype = ops.graph, ops.settings.dtype

    def hand_on() -> list[Value]:
        return [graph.op("Identity", value) for past in pasts for value in past]

    def make() -> list[Value]:
        x = memory if memory.dtype == dtype else graph.op("Cast", memory, dtype=dtype, to=dtype)
        heads = model.config.decoder.heads
        layers = [
            layer
            for block in model.decoder.layers
            for layer in (block.cross_attn.k_proj, block.cross_attn.v_proj)
        ]
        return [ops.split(ops.linear(layer, x), heads) for layer in layers]

    names = [
        f"present.{index}.encoder.{part}"
        for index in range(len(pasts))
        for part in ("key", "value")
    ]
    graph.node(
        "If",
        [cached],
        names,
        name="decoder.cross_keys/If",
        then_branch=graph.branch("past", hand_on),
        else_branch=graph.branch("encoded", make),
    )
    values = [Value(name, dtype) for name in names]
    return [CrossCache(index, *values[2 * index : 2 * index + 2]) for index in range(len(pasts))]
