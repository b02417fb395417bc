"""The KV cache in int8: a finished graph runs a short text, which tells how large its keys get.

onnxruntime's GroupQueryAttention quantizes what it appends by one scale a channel, which stands in
the graph: code = round(x / scale), within −128…127.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.config import ModelConfig
from ..mlx_model.positions import RopeConfig
from ..runtime.ort_graph import open_session

_LARGEST = 127
# What is beyond the scale is cut off, which harms more than a coarser step.
_HEADROOM = 1.25
_LEAST = 2.0**-14  # of a layer's largest value: channels that the text left at 0 get a step too
_TOKENS = 256  # of the text, and as many at random
_MANTISSA = 8  # bits of a scale: rounding noise of different machines does not show
_KEY_SCALE, _VALUE_SCALE = 12, 13  # inputs of GroupQueryAttention
_TEXT = """\
The ferry leaves at 6:40 in the morning and again at noon. "Is there room for two bicycles?" asked \
Maria. There was, for 3.50 a piece, and so they stood on deck, ate bread with cheese, and watched \
how the town became small. On 14 March 2019 the old pier had burnt down; nobody was hurt.

1. Boil 500 ml of water. 2. Add the rice, a pinch of salt, and wait. 3. Serve it hot!

import os

def newest(folder: str, ending: str = ".csv") -> list[str]:
    names = [n for n in os.listdir(folder) if n.endswith(ending)]
    return sorted(names, key=lambda n: -os.path.getmtime(os.path.join(folder, n)))[:10]

Der Fluss führt im Frühjahr Hochwasser. Où est la gare, s'il vous plaît ? ¿Cuánto cuesta? \
今日はいい天気ですね。 Сколько времени? If x² + 2x = 15, then x = 3 or x = −5. {"id": 7, "ok": true}
"""


def calibration_ids(checkpoint: Checkpoint, vocab_size: int, context: int) -> list[list[int]]:
    """Random tokens, and the text above where the checkpoint has a tokenizer; `context` at most."""
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, vocab_size, _TOKENS).tolist()]
    if checkpoint.tokenizer_json:
        text = checkpoint.tokenizer().encode(_TEXT)[:_TOKENS]
        sequences.append([token for token in text if token < vocab_size])
    return [ids[:context] for ids in sequences if ids]


def quantize_cache(
    model: ModelProto, path: Path, config: ModelConfig, sequences: Iterable[Sequence[int]]
) -> None:
    """Give `model`, which has been written to `path`, an int8 cache with scales for `sequences`.

    It is changed in place; the file is not. Raises InputError when the graph cannot be loaded.
    """
    largest = _largest(path, config, sequences)
    for arg in (*model.graph.input, *model.graph.output):
        if arg.name in largest or arg.name.startswith("past_key_values."):
            arg.type.tensor_type.elem_type = TensorProto.INT8
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            model.graph.initializer.extend(_quantize(node, largest))


def _largest(
    path: Path, config: ModelConfig, sequences: Iterable[Sequence[int]]
) -> dict[str, np.ndarray]:
    """The largest magnitude of each channel [K, D], by the name of the present."""
    session = open_session(path, threads=None)
    pasts = [arg for arg in session.get_inputs() if arg.name.startswith("past_key_values.")]
    kind = np.float16 if pasts[0].type == "tensor(float16)" else np.float32
    empty = np.zeros((1, config.kv_heads, 0, config.head_dim), kind)
    presents = [arg.name.replace("past_key_values", "present") for arg in pasts]
    largest = {name: np.zeros((config.kv_heads, config.head_dim)) for name in presents}
    for ids in sequences:
        feeds = {arg.name: empty for arg in pasts}
        feeds |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        for name, value in zip(presents, session.run(presents, feeds), strict=True):
            seen = np.abs(value[0].astype(np.float64))
            if name.endswith(".key"):
                seen = _at_any_position(seen, config.blocks[int(name.split(".")[1])].position)
            largest[name] = np.maximum(largest[name], seen.max(axis=1))
    return largest


def _at_any_position(keys: np.ndarray, position: object) -> np.ndarray:
    """What keys [K, S, D] reach when they turn further: slow pairs hardly do in a short text."""
    if not isinstance(position, RopeConfig):
        return keys
    dims, reach = position.dims, keys.copy()
    halves = [slice(0, dims // 2), slice(dims // 2, dims)]
    pair = [slice(0, dims, 2), slice(1, dims, 2)] if position.interleaved else halves
    length = np.hypot(keys[..., pair[0]], keys[..., pair[1]])
    for part in pair:
        reach[..., part] = length
    return reach


def _quantize(node: NodeProto, largest: dict[str, np.ndarray]) -> Iterable[TensorProto]:
    """Turn one attention node; its two scales."""
    node.input.extend([""] * (_VALUE_SCALE + 1 - len(node.input)))
    for index, present in zip((_KEY_SCALE, _VALUE_SCALE), node.output[1:3], strict=True):
        node.input[index] = f"{present}.scale"
        yield numpy_helper.from_array(_scales(largest[present])[None, :, None], node.input[index])
    for name, value in (
        ("k_quant_type", "PER_CHANNEL"),
        ("v_quant_type", "PER_CHANNEL"),
        ("kv_cache_bit_width", 8),
    ):
        node.attribute.append(helper.make_attribute(name, value))


def _scales(largest: np.ndarray) -> np.ndarray:
    """Scales [K, D], float32, rounded up to few bits."""
    floor = max(float(largest.max()) * _LEAST, 1e-6)
    mantissa, exponent = np.frexp(np.maximum(largest, floor) * _HEADROOM / _LARGEST)
    rounded = np.ceil(mantissa * 2**_MANTISSA) / 2**_MANTISSA
    return np.ldexp(rounded, exponent).astype(np.float32)
