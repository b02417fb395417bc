"""An adapter fused into a checkpoint's weights, under the checkpoint's own names."""

import mlx.core as mx

from ...runtime.errors import InputError
from ..quantized_layers import stored_format
from .adapter import Adapter, Factor, LowRank
from .names import find_all, is_vocabulary, tied_head

Weights = dict[str, mx.array]
_CONV1D = frozenset(["c_attn", "c_fc", "c_proj"])  # GPT-2's, which lie [in, out]
_TINY = 1e-30  # the least norm: a row of zeros stays zeros


def apply_adapter(weights: Weights, adapter: Adapter) -> Weights:
    """The checkpoint's `weights` with `adapter` fused in, by the formulas of `LowRank`.

    Computed in float32 and rounded to the weight's own type; nothing is evaluated. A quantized
    layer that changes becomes a floating-point one of its scales' type, as the change would be
    lost in its codes. A head that shares the embedding's table is given its own when only one of
    the two changes. Raises InputError when a layer is not there, or has another shape.
    """
    head = tied_head(weights)
    fused = weights | {name: weights[table] for name, table in head.items()}
    wanted = [*adapter.replaced, *(f"{layer}.weight" for layer in adapter.updates)]
    places = find_all(dict.fromkeys(wanted), fused)
    tensors = mx.load(str(adapter.file))
    for name, factor in adapter.replaced.items():
        _replace(fused, places[name], _take(tensors, factor))
    for layer, update in adapter.updates.items():
        _fuse(fused, places[f"{layer}.weight"].removesuffix(".weight"), update, tensors)
    changed = set(places.values())
    if "lm_head.weight" in changed:
        return fused
    if adapter.ties_head or changed.isdisjoint(head.values()):
        return {name: array for name, array in fused.items() if name not in head}
    return fused


def _take(tensors: Weights, factor: Factor) -> mx.array:
    """In float32, as the formula takes it."""
    array = tensors[factor.name].astype(mx.float32)
    return array.T if factor.transposed else array


def _replace(fused: Weights, name: str, array: mx.array) -> None:
    """Put `array` in the place of the tensor `name`, quantized or not."""
    layer, _, leaf = name.rpartition(".")
    if leaf == "weight":
        _require_shape(fused, layer, array.shape)
        _store(fused, layer, array)
        return
    if fused[name].shape != array.shape:
        raise _misfit(name, fused[name].shape, array.shape)
    fused[name] = array.astype(fused[name].dtype)


def _fuse(fused: Weights, layer: str, update: LowRank, tensors: Weights) -> None:
    shape = update.weight_shape
    turned = _lies_in_out(fused, layer, shape)
    _require_shape(fused, layer, shape[::-1] if turned else shape)
    weight = _dense(fused, layer, shape[-1])
    weight = weight.T if turned else weight
    weight = weight + update.scale * (_take(tensors, update.up) @ _take(tensors, update.down))
    if update.magnitude is not None:
        axis = 0 if update.by_column else 1
        norm = mx.sqrt(mx.square(weight).sum(axis, keepdims=True))
        magnitude = mx.expand_dims(_take(tensors, update.magnitude), axis)
        weight = weight * (magnitude / mx.maximum(norm, _TINY))
    _store(fused, layer, weight.T if turned else weight)


def _lies_in_out(fused: Weights, layer: str, shape: tuple[int, ...]) -> bool:
    """Whether the layer is a Conv1D of GPT-2, whose weight is [in, out].

    Its square layers look alike both ways, so that the first layer of the block tells: c_attn,
    which puts out more than it takes in.
    """
    block, _, last = layer.rpartition(".")
    found = fused[f"{layer}.weight"].shape
    if last not in _CONV1D or f"{layer}.scales" in fused or len(found) != 2:
        return False
    if found[0] != found[1]:
        return found[::-1] == shape
    first = fused.get(f"{block.rpartition('.')[0]}.attn.c_attn.weight")
    return first is not None and first.shape[1] > first.shape[0]


def _dense(fused: Weights, layer: str, width: int) -> mx.array:
    """The layer's weight in float32, dequantized if need be; `width` is its number of columns."""
    weight, scales = fused[f"{layer}.weight"], fused.get(f"{layer}.scales")
    if scales is None:
        return weight.astype(mx.float32)
    kind = stored_format(layer, fused, width)
    biases = fused.get(f"{layer}.biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(
        weight,
        scales,
        biases,
        group_size=kind.group_size,
        bits=kind.bits,
        mode=kind.mode,
        dtype=mx.float32,
    )


def _store(fused: Weights, layer: str, weight: mx.array) -> None:
    """Make `weight` the layer's, of the type that the layer computes in."""
    dtype = fused.get(f"{layer}.scales", fused[f"{layer}.weight"]).dtype
    if not mx.issubdtype(dtype, mx.floating):  # scales of a floating-point mode
        dtype = mx.bfloat16
    fused[f"{layer}.weight"] = weight.astype(dtype)
    for leaf in ("scales", "biases"):
        fused.pop(f"{layer}.{leaf}", None)


def _require_shape(fused: Weights, layer: str, shape: tuple[int, ...]) -> None:
    """Raise InputError unless the layer's weight, unpacked, has `shape`."""
    found = fused[f"{layer}.weight"].shape
    if f"{layer}.scales" not in fused:
        if found != shape:
            raise _misfit(layer, found, shape)
        return
    try:
        if found[:-1] == shape[:-1] and len(found) == len(shape):
            stored_format(layer, fused, shape[-1])
            return
    except InputError:  # no format of MLX's packs rows of this width so
        pass
    raise _misfit(layer, found, shape, "packed codes of shape ")


def _misfit(
    name: str, found: tuple[int, ...], wanted: tuple[int, ...], kind: str = ""
) -> InputError:
    is_resized = len(found) == 2 and found[0] != wanted[0] and is_vocabulary(name)
    hint = "resize the base model's vocabulary first" if is_resized else "it is another model's"
    return InputError(
        f"the adapter has {list(wanted)} for {name}, the checkpoint {kind}{list(found)}; {hint}"
    )
