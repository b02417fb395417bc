"""The KV cache in int8: a finished graph runs short texts, which tell how large its keys get.

onnxruntime's GroupQueryAttention quantizes what it appends by one scale a channel, which stands in
the graph: code = round(x / scale), within −128…127.

The first token takes most of many heads' attention, whatever it is (attention sinks,
arXiv:2309.17453), and so its rounding errors are most of all harm. Its keys and values hardly
depend on which token it is, so the scales are made to fit them: they are multiples of it.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.config import ModelConfig
from ..mlx_model.positions import RopeConfig, inverse_frequencies
from ..runtime.errors import InputError
from ..runtime.graph_file import KV_METADATA, MINIMUM_METADATA, ROWS_METADATA
from ..runtime.tokenizer import Tokenizer
from .int8_attention import SHORT, attend_to_codes
from .probe import open_probe
from .requirements import minimum_onnxruntime
from .settings import Settings

_NBITS, _INT8_LEVEL = "MatMulNBits", 4
_FLOAT_PRODUCTS = {"MatMul", "Gemm", "Einsum", "Conv", "MoE", "QMoE", "Loop", "Scan"}
_LARGEST = 127
# What is beyond the scale is cut off, which harms more than a coarser step.
_HEADROOM = 1.25
_LEAST = 2.0**-14  # of a layer's largest value: channels that the text left at 0 get a step too
_TOKENS = 256  # of the text, and as many at random
_CALL = 64  # tokens of one call
_MANTISSA = 10  # bits of a scale: rounding noise of different machines does not show
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
    """Random tokens, and last the text above where the checkpoint has a tokenizer.

    Each begins as a conversation does, where that is known, and has `context` tokens at most.
    """
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, vocab_size, _TOKENS).tolist()]
    start: list[int] = []
    if checkpoint.tokenizer_json:
        tokenizer = checkpoint.tokenizer()
        start = _start(tokenizer)
        sequences.append(tokenizer.encode(_TEXT, add_special_tokens=False)[:_TOKENS])
    known = ([t for t in (*start, *ids) if t < vocab_size] for ids in sequences)
    return [ids[:context] for ids in known if ids]


def _start(tokenizer: Tokenizer) -> list[int]:
    """What conversations, or else texts, always begin with: one token or none."""
    if tokenizer.chat_template is not None:
        with suppress(InputError):  # some templates want more than a message
            return tokenizer.encode_chat([{"role": "user", "content": "Hi"}])[:1]
    return tokenizer.encode("")[:1]


def _computes_by_row(model: ModelProto) -> bool:
    """Whether all products are of int8 activations: float kernels add up in another order for one
    row than for several.
    """
    nodes = model.graph.node
    levels = {helper.get_node_attr_value(n, "accuracy_level") for n in nodes if n.op_type == _NBITS}
    return levels == {_INT8_LEVEL} and _FLOAT_PRODUCTS.isdisjoint(n.op_type for n in nodes)


def quantize_cache(
    model: ModelProto,
    path: Path,
    config: ModelConfig,
    settings: Settings,
    sequences: Iterable[Sequence[int]],
) -> None:
    """Give `model`, a variant of the graph at `path`, an int8 cache with scales for `sequences`.

    Raises InputError when the graph at `path` cannot be loaded.
    """
    largest, first = _measure(path, config, settings.context, sequences)
    attend_to_codes(model, {name: _scales(largest[name], first[name]) for name in largest})
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    metadata[KV_METADATA] = "int8"
    metadata[MINIMUM_METADATA] = minimum_onnxruntime(config, replace(settings, kv="int8"))
    if _computes_by_row(model):
        metadata[ROWS_METADATA] = str(SHORT)
    helper.set_model_props(model, metadata)


def _measure(
    path: Path, config: ModelConfig, context: int, sequences: Iterable[Sequence[int]]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of each channel [K, D], by the name of the present: the largest magnitude up to `context`,
    and the first token's.
    """
    model = onnx.load(path, load_external_data=False)
    presents = [arg for arg in model.graph.output if arg.name.startswith("present.")]
    del model.graph.output[:]
    model.graph.output.extend(presents)
    session = open_probe(model, path)
    pasts = [arg for arg in session.get_inputs() if arg.name.startswith("past_key_values.")]
    kind = np.float16 if pasts[0].type == "tensor(float16)" else np.float32
    empty = np.zeros((1, config.kv_heads, 0, config.head_dim), kind)
    presents = [arg.name.replace("past_key_values", "present") for arg in pasts]
    largest = {name: np.zeros((config.kv_heads, config.head_dim)) for name in presents}
    first: dict[str, list[np.ndarray]] = {name: [] for name in presents}
    for ids in sequences:
        feeds = {arg.name: empty for arg in pasts}
        for end in range(_CALL, len(ids) + _CALL, _CALL):  # in parts, which take less memory
            read = min(end, len(ids))
            feeds["input_ids"] = np.array([ids[end - _CALL : read]])
            feeds["attention_mask"] = np.ones((1, read), np.int64)
            values = session.run(presents, feeds)
            feeds |= {arg.name: value for arg, value in zip(pasts, values, strict=True)}
        for name, value in zip(presents, values, strict=True):
            seen = value[0].astype(np.float64)
            first[name].append(np.abs(seen[:, 0]))
            if name.endswith(".key"):
                seen = _reach(seen, config.blocks[int(name.split(".")[1])].position, context)
            largest[name] = np.maximum(largest[name], np.abs(seen).max(axis=1))
    return largest, {name: np.mean(values, axis=0) for name, values in first.items()}


def _reach(keys: np.ndarray, position: object, context: int) -> np.ndarray:
    """What keys [K, S, D] of the first S positions reach when they stand elsewhere in `context`.

    A pair (a, b) has the length r and turns by p·ω at position p, so that a = r·cos(φ + p·ω) and
    b = r·sin(φ + p·ω): slow pairs hardly turn in a short text, the slowest in none.
    """
    if not isinstance(position, RopeConfig):
        return keys
    dims, reach = position.dims, keys.copy()
    halves = [slice(0, dims // 2), slice(dims // 2, dims)]
    pair = [slice(0, dims, 2), slice(1, dims, 2)] if position.interleaved else halves
    a, b = keys[..., pair[0]], keys[..., pair[1]]
    turns = inverse_frequencies(position.at(context)).astype(np.float64)
    if position.switch is not None and position.switch < context:
        turns[:] = np.inf  # the rotation is another for each length
    length = np.hypot(a, b)
    begin = np.arctan2(b, a) - np.arange(keys.shape[1])[:, None] * np.minimum(turns, 1)
    for part, phase in zip(pair, (begin, begin - np.pi / 2), strict=True):
        reach[..., part] = length * _largest_cosine(phase, context * turns)
    return reach


def _largest_cosine(begin: np.ndarray, width: np.ndarray) -> np.ndarray:
    """max |cos t| for t from `begin` to `begin` + `width`."""
    end = begin + np.minimum(width, np.pi)
    crest = np.floor(end / np.pi) > np.floor(begin / np.pi)
    return np.where(crest, 1.0, np.maximum(np.abs(np.cos(begin)), np.abs(np.cos(end))))


def _scales(largest: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Scales [K, D], float32, of which the first token's magnitudes are multiples.

    So they are up to twice as large as `largest` asks for; magnitudes below one step stay as near
    to a multiple as they are.
    """
    floor = max(float(largest.max()) * _LEAST, 1e-6)
    steps = _rounded(np.maximum(largest, floor) * _HEADROOM / _LARGEST)
    target = _rounded(first)
    codes = np.floor(target / steps)
    return np.where(codes < 1, steps, target / np.maximum(codes, 1)).astype(np.float32)


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """Positive numbers rounded up to few bits."""
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.ceil(mantissa * 2**_MANTISSA) / 2**_MANTISSA, exponent)
