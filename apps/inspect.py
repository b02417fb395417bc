"""What a model consists of and what it needs, from its config and its files' headers alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..mlx_model.checkpoints import safetensors
from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.checkpoints.gguf import read_gguf
from ..mlx_model.config import ModelConfig
from ..mlx_model.families import read_family
from ..runtime.errors import InputError
from .models import open_with_adapter, require_mlx

COMPONENTS = ("attention", "mlp", "embeddings", "norms")
DTYPE_BYTES = {"fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Component:
    """One row of the parameter table."""

    name: str
    parameters: int
    bytes: int  # as stored; scales and biases of quantized weights included


@dataclass(frozen=True)
class Cost:
    """Bytes at one context length, for keys, values and scores of one float type."""

    dtype: str  # "fp16" or "fp32"
    kv_per_token: int  # all layers
    kv_cache: int  # all layers, the whole context
    total: int  # weights as stored, or with an adapter fused in, and the KV cache
    naive_scores_layer: int  # H × L × L scores that unfused attention would write in one layer
    naive_scores_all: int  # the same, all layers


@dataclass(frozen=True)
class AdapterEffect:
    """What an adapter is, and what fusing it costs."""

    format: str  # "PEFT" or "mlx-lm"
    method: str  # "LoRA" or "DoRA"
    layers: int
    parameters: int
    added_bytes: int  # a quantized layer that it changes becomes a floating-point one


@dataclass(frozen=True)
class Inspection:
    """A checkpoint's shape, parameters and memory."""

    model: str
    config: ModelConfig
    components: list[Component]
    context: int  # tokens that `costs` are for
    costs: list[Cost]
    adapter: AdapterEffect | None = None

    @property
    def parameters(self) -> int:
        return sum(component.parameters for component in self.components)

    @property
    def weight_bytes(self) -> int:
        return sum(component.bytes for component in self.components)


def inspect_model(
    path: Path, name: str, context: int | None = None, adapter: Path | None = None
) -> Inspection:
    """Inspect the checkpoint at `path`; no weight is read.

    `context` is in tokens; None takes the model's longest. `adapter` is the folder of one, which
    is checked against the checkpoint. Raises InputError when the path is no
    checkpoint, the architecture is unknown, or the context exceeds the model's.
    """
    checkpoint = open_with_adapter(path, adapter)
    require_mlx("inspecting a model")
    config = read_family(checkpoint.config).config
    length = config.context if context is None else context
    if not 1 <= length <= config.context:
        raise InputError(
            f"a context of {length} tokens was asked for; {name} takes 1 to {config.context}"
        )
    counts = count_parameters(config)
    sizes = _stored_bytes(checkpoint)
    components = [Component(part, counts[part], sizes[part]) for part in COMPONENTS]
    effect = _effect(checkpoint)
    weights = sum(sizes.values()) + (effect.added_bytes if effect else 0)
    costs = [_cost(config, length, weights, dtype) for dtype in DTYPE_BYTES]
    return Inspection(name, config, components, length, costs, effect)


def _effect(checkpoint: Checkpoint) -> AdapterEffect | None:
    """Of the checkpoint's adapter, if it has one. Raises InputError when it does not fit."""
    if (adapter := checkpoint.adapter) is None:
        return None
    fused, plain = checkpoint.load_weights(), replace(checkpoint, adapter=None).load_weights()
    return AdapterEffect(
        adapter.format,
        adapter.method,
        len(adapter.layers),
        adapter.parameters,
        sum(w.nbytes for w in fused.values()) - sum(w.nbytes for w in plain.values()),
    )


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters of each component, all layers; a tied head is counted once, as embedding."""
    from mlx.utils import tree_flatten

    from ..mlx_model.decoder import Decoder

    counts = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in tree_flatten(Decoder(config).parameters()):  # nothing is evaluated
        counts[_component(name)] += parameter.size
    return counts


def _cost(config: ModelConfig, length: int, weights: int, dtype: str) -> Cost:
    size = DTYPE_BYTES[dtype]
    per_token = 2 * config.layers * config.kv_heads * config.head_dim * size
    scores = config.heads * length * length * size
    return Cost(
        dtype=dtype,
        kv_per_token=per_token,
        kv_cache=per_token * length,
        total=weights + per_token * length,
        naive_scores_layer=scores,
        naive_scores_all=config.layers * scores,
    )


def _stored_bytes(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes of each component in the checkpoint's files."""
    sizes = dict.fromkeys(COMPONENTS, 0)
    for name, size in _tensor_bytes(checkpoint.path):
        if (component := _component(name)) is not None:
            sizes[component] += size
    return sizes


def _tensor_bytes(path: Path) -> Iterable[tuple[str, int]]:
    if path.is_dir():
        for file in safetensors.find_weights(path):
            for name, tensor in safetensors.read_header(file).items():
                yield name, tensor.end - tensor.begin
    else:
        for name, tensor in read_gguf(path).tensors.items():
            yield name, tensor.rows * tensor.row_bytes


def _component(name: str) -> str | None:
    """The component of a tensor, by its name in any checkpoint's spelling; None: it is a buffer
    that follows from the config."""
    return next((part for pattern, part in _NAMES if re.search(pattern, name)), "embeddings")


# By the first pattern that is found in a name.
_NAMES = (
    (r"rope|rotary|attn_rot|\b(attn|attention)\.(bias|masked_bias|embed_positions)$", None),
    (r"norm|\bln_|LayerNorm", "norms"),
    (r"attn|attention", "attention"),
    (r"mlp|ffn|moe|\bfc[12]\b", "mlp"),
)
