"""The keys that most configs share, read under whatever names the family gives them."""

from dataclasses import dataclass
from typing import Any

from ....runtime.errors import InputError
from ...activations import ACTIVATIONS
from ...config import BlockConfig, Experts, ModelConfig, Norm
from ...positions import Position
from .reader import ConfigReader
from .rope import RopeDefaults, read_rope, stretched_context


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, by the names of ModelConfig."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int

    def sizes(self) -> dict[str, int]:
        """What ModelConfig takes of them as they are."""
        names = ("vocab_size", "hidden_size", "heads", "kv_heads", "head_dim", "context")
        return {name: getattr(self, name) for name in names}


_NAMES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}


def read_shape(
    reader: ConfigReader,
    *,
    context: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    context_key: str = "max_position_embeddings",
    kv_heads_key: str = "num_key_value_heads",
    **names: str,
) -> Shape:
    """Read the sizes; the keywords are what an absent key means (None: as transformers derives it).

    `names` gives a family's own key for a field of Shape, the `…_key` its key for those two.
    Raises InputError for sizes that do not fit together.
    """
    keys = {**_NAMES, **names}
    hidden = reader.positive(keys["hidden_size"])
    heads = reader.positive(keys["heads"])
    read_kv = reader.positive(kv_heads_key, kv_heads or heads)
    dim = reader.positive("head_dim", head_dim)
    if dim is None and hidden % heads:
        raise InputError(
            f"config.json has {keys['hidden_size']} {hidden}, no multiple of {heads} heads"
        )
    if heads % read_kv:
        raise InputError(f"config.json has {heads} heads, no multiple of {read_kv} kv heads")
    return Shape(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        layers=reader.positive(keys["layers"]),
        heads=heads,
        kv_heads=read_kv,
        head_dim=dim or hidden // heads,
        context=stretched_context(reader, reader.positive(context_key, context)),
    )


def read_activation(reader: ConfigReader, key: str, default: str) -> str:
    """The MLP's activation by any of its public names. Raises InputError for an unknown one."""
    name = reader.take(key, str, default)
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise InputError(f"config.json has {key} = {name!r}; Pippin implements {known}")
    return ACTIVATIONS[name]


def same_blocks(
    layers: int,
    position: Position,
    window: int | None = None,
    experts: Experts | None = None,
) -> tuple[BlockConfig, ...]:
    """`layers` blocks that do not differ."""
    return (BlockConfig(position, window, experts),) * layers


def inside(window: int | None, context: int) -> int | None:
    """A window that hides something within the context, or None."""
    return None if window is None or window >= context else window


def read_layer_types(
    reader: ConfigReader, layers: int, default: list[str], known: tuple[str, ...]
) -> list[str]:
    """`layer_types`, one a layer; `default` stands for an absent key. Raises InputError."""
    kinds = reader.take("layer_types", list, None) or default
    if len(kinds) != layers:
        raise InputError(f"config.json has {len(kinds)} layer_types for {layers} layers")
    for kind in kinds:
        if kind not in known:
            raise InputError(
                f"config.json has layer type {kind!r}; Pippin implements {', '.join(known)}"
            )
    return kinds


def read_llama_like(
    reader: ConfigReader, shape: Shape, *, family: str, tied: bool = False, **changes: Any
) -> ModelConfig:
    """Llama's remaining keys; `changes` are fields of ModelConfig that the family has otherwise.

    `tied`: what an absent tie_word_embeddings means.
    """
    if "blocks" not in changes:
        rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
        changes["blocks"] = same_blocks(shape.layers, rope)
    if "norm" not in changes:
        changes["norm"] = Norm(reader.take("rms_norm_eps", float, 1e-6))
    if "activation" not in changes:
        changes["activation"] = read_activation(reader, "hidden_act", "silu")
    if "feed_forward" not in changes:
        changes["feed_forward"] = reader.positive("intermediate_size")
    return ModelConfig(
        family=family,
        **shape.sizes(),
        tie_embeddings=reader.take("tie_word_embeddings", bool, tied),
        **changes,
    )
