"""The tensors of an adapter's file, found by the endings of their names and checked in pairs."""

from collections.abc import Mapping
from pathlib import Path

from ...runtime.errors import InputError
from .adapter import Factor, LowRank

Shapes = Mapping[str, tuple[int, ...]]  # of a file's tensors, by name


def group_by_layer(shapes: Shapes, endings: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Tensor names by layer and role; `endings` gives the role of NAME in LAYER.NAME.

    Tensors with none of the endings are left out.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in shapes:
        for ending, role in endings.items():
            if name.endswith(f".{ending}"):
                layers.setdefault(name.removesuffix(f".{ending}"), {})[role] = name
    return layers


def as_stored(shapes: Shapes, name: str) -> Factor:
    """The tensor as the file has it."""
    return Factor(name, shapes[name])


def transposed(shapes: Shapes, name: str) -> Factor:
    """The matrix `name` with its axes exchanged."""
    return Factor(name, shapes[name][::-1], transposed=True)


def require_roles(file: Path, layer: str, roles: Mapping[str, str], wanted: set[str]) -> None:
    """Raise InputError unless the layer has a tensor for each of `wanted`, and no other."""
    if lacking := sorted(wanted - roles.keys()):
        raise InputError(f"{file} lacks {' and '.join(lacking)} of {layer}; it is incomplete")
    if extra := sorted(roles.keys() - wanted):
        raise InputError(
            f"{file} has {roles[extra[0]]!r}, which its adapter_config.json does not call for"
        )


def check(file: Path, layer: str, update: LowRank, rank: int) -> LowRank:
    """`update`, if its factors have `rank` and fit each other. Raises InputError."""
    down, up = update.down.shape, update.up.shape
    stacked = down[:-2] == up[:-2]
    if not (len(down) == len(up) in (2, 3) and stacked and down[-2] == up[-1] == rank):
        raise InputError(
            f"{file} has factors of shapes {list(up)} and {list(down)} for {layer}; expected "
            f"[out, r] and [r, in] with the config's rank r = {rank}"
        )
    if update.magnitude is not None:
        size = down[-1] if update.by_column else up[-2]
        if len(down) == 3 or update.magnitude.shape != (size,):
            raise InputError(
                f"{file} has a magnitude of shape {list(update.magnitude.shape)} for {layer}; "
                f"expected [{size}]"
            )
    return update
