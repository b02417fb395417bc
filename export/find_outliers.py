"""Which activations are hard to round to int8: found on a graph that rounds none.

Much of what int8 costs in quality comes from few channels, which are the same for every text but
for the first token: most heads look at it, and its activations are unlike all others. It counts as
much as the rest together.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ..mlx_model.config import ModelConfig
from .probe import open_probe, soonest

_STEP = 8  # every which token is looked at
# Further columns take time: they must leave no more than this share of the noise.
_WORTH = 0.6
_LEAST_BLOCKS = 8  # of x
_HEADS = (".head", "lm_head")


def find_outliers(
    path: Path, config: ModelConfig, sequences: Sequence[Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """By the name of each quantized product in the exact graph at `path`: the channels of what it
    multiplies that are best moved apart.

    The graph runs on the last of `sequences`. Raises InputError when it cannot be loaded.
    """
    model = onnx.load(path, load_external_data=False)
    products = {
        node.name.removesuffix("/MatMulNBits"): (node.input[0], _attribute(node, "block_size"))
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
    }
    seen = _run(model, path, config, sorted({x for x, _ in products.values()}), sequences[-1])
    found = {key: _outliers(seen[key[0]], key[1]) for key in set(products.values())}
    outliers = {name: found[key] for name, key in products.items()}
    for name, (x, block) in products.items():
        if name.endswith(_HEADS):
            outliers[name] = _as_many_as_fit(seen[x], block)
    return outliers


def _run(
    model: ModelProto, path: Path, config: ModelConfig, names: list[str], ids: Sequence[int]
) -> dict[str, np.ndarray]:
    """Some rows [R, K] of each of the named values, the first token's among them."""
    bounds = [np.array([n]) for n in (0, np.iinfo(np.int64).max, 1, _STEP)]
    slicing = [numpy_helper.from_array(n, f"rounding.{i}") for i, n in enumerate(bounds)]
    model.graph.initializer.extend(slicing)
    del model.graph.output[:]
    slices = []
    for index, name in enumerate(names):
        inputs = [name, *(tensor.name for tensor in slicing)]
        slices.append(helper.make_node("Slice", inputs, [f"rows.{index}"]))
        info = helper.make_tensor_value_info(f"rows.{index}", TensorProto.FLOAT, None)
        model.graph.output.append(info)
    nodes = soonest(model.graph.node, slices)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    session = open_probe(model, path)
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    empty = np.zeros((1, config.kv_heads, 0, config.head_dim), np.float32)
    feeds |= {arg.name: empty for arg in session.get_inputs() if arg.name not in feeds}
    if any(arg.name == "num_logits" for arg in session.get_overridable_initializers()):
        feeds["num_logits"] = np.array([0])  # the head sees all rows
    rows = session.run(None, feeds)
    return {n: r.reshape(-1, r.shape[-1]) for n, r in zip(names, rows, strict=True)}


def _outliers(x: np.ndarray, block: int) -> tuple[int, ...]:
    """The channels of x [R, K] that are best moved apart; () if that gains too little."""
    if not _is_wide(x, block):
        return ()
    best, least, plain, by_size = (), _WORTH, _noise(x, block), _by_size(x)
    for count in (1 << n for n in range(block.bit_length())):
        rest, apart = x.copy(), np.zeros((len(x), block), x.dtype)
        rest[:, by_size[:count]] = 0
        apart[:, :count] = x[:, by_size[:count]]
        share = _share(_noise(rest, block) + _noise(apart, block), plain)
        if share < least:
            best, least = tuple(np.sort(by_size[:count]).tolist()), share
    return best


def _as_many_as_fit(x: np.ndarray, block: int) -> tuple[int, ...]:
    """A block of the largest channels: for the logits, where no later layer averages the noise."""
    if not _is_wide(x, block):
        return ()
    by_size = np.argsort(-np.abs(x).mean(axis=0), kind="stable")
    return tuple(np.sort(by_size[:block]).tolist())


def _is_wide(x: np.ndarray, block: int) -> bool:
    """Whether columns apart would be a small part of x [R, K]."""
    return x.shape[1] % block == 0 and x.shape[1] >= _LEAST_BLOCKS * block and len(x) > 1


def _by_size(x: np.ndarray) -> np.ndarray:
    """The channels of x [R, K], the largest first; the first row counts as much as the others."""
    size = np.abs(x).mean(axis=0)
    first = np.abs(x[0])
    return np.argsort(-np.maximum(size / size.mean(), first / first.mean()), kind="stable")


def _noise(x: np.ndarray, block: int) -> np.ndarray:
    """What rounding each block of x [R, K] to int8 at max|x|/127 does to it: squares, [R]."""
    blocks = x.reshape(len(x), -1, block)
    steps = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True) / 127, 1e-30)
    return np.square(np.rint(blocks / steps) * steps - blocks).sum(axis=(1, 2))


def _share(noise: np.ndarray, plain: np.ndarray) -> float:
    """How `noise` [R] compares: the first token and the middle of the others, alike."""
    ratio = noise / np.maximum(plain, 1e-30)
    return float((ratio[0] + np.median(ratio[1:])) / 2)


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next(attribute.i for attribute in node.attribute if attribute.name == name)
