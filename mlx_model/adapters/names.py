"""Where an adapter's tensors belong in a checkpoint: names, and heads that share a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...runtime.errors import InputError

# The last part of a token table's name, in any family.
TABLES = frozenset(["embed_tokens", "embed_in", "word_embeddings", "wte"])
_HEADS = frozenset(["lm_head", "embed_out"])
_ENCODER_TABLE = "embeddings.word_embeddings"  # BERT's and its kin's, which have no head
_SHOWN = 3


def find_all(wanted: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """The checkpoint's name of each tensor that an adapter names.

    The two may differ in their first part alone, as "transformer.h.0", "model.h.0" and "h.0" do:
    it is that of the class that was saved. Raises InputError for a tensor that is not there.
    """
    known = set(stored)
    by_key: dict[str, set[str]] = {}
    for name in known:
        for key in _keys(name):
            by_key.setdefault(key, set()).add(name)
    found, missing = {}, []
    for name in wanted:
        near = {name} if name in known else {n for k in _keys(name) for n in by_key.get(k, ())}
        if len(near) == 1:
            found[name] = near.pop()
        else:
            missing.append(name.removesuffix(".weight"))
    if missing:
        raise InputError(
            f"the adapter changes {some(missing)}, which the checkpoint lacks; it was trained on "
            "another model"
        )
    if len(set(found.values())) < len(found):
        raise InputError("the adapter changes a layer of the checkpoint under two names")
    return found


def same_layer(name: str, other: str) -> bool:
    """Whether two layers' names differ in their first part at most."""
    return not _keys(f"{name}.weight").isdisjoint(_keys(f"{other}.weight"))


def tied_head(weights: Mapping[str, Any]) -> dict[str, str]:
    """The tensors of a head that a checkpoint leaves out, and its table's, which stand for them.

    Empty where there is a head, or no table that could be one.
    """
    layers = {n.removesuffix(".weight") for n in weights if n.endswith(".weight")}
    last_parts = {layer.rpartition(".")[2] for layer in layers}
    tables = [layer for layer in layers if layer.rpartition(".")[2] in TABLES]
    if last_parts & _HEADS or len(tables) != 1 or tables[0].endswith(_ENCODER_TABLE):
        return {}
    leaves = ("weight", "scales", "biases")
    pairs = {f"lm_head.{leaf}": f"{tables[0]}.{leaf}" for leaf in leaves}
    return {head: table for head, table in pairs.items() if table in weights}


def is_vocabulary(layer: str) -> bool:
    """Whether the rows of the layer are tokens."""
    return layer.rpartition(".")[2] in TABLES | _HEADS


def some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _keys(name: str) -> set[str]:
    """A tensor's name, and the same without its first part where a layer's name is left."""
    tail = name.partition(".")[2]
    return {name, tail} if "." in tail else {name}
