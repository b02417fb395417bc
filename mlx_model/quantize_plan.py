"""Which of a checkpoint's tensors are quantized, and how: the format, recipes and rules."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..runtime.errors import InputError
from .decoder import Decoder
from .families import Family
from .quantized_layers import AFFINE_BITS, AFFINE_GROUPS, FLOAT_MODES, MODES, Format

RECIPES = {"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)}
_ENDING = ".weight"
_GATES = ("mlp.gate", "mlp.shared_expert_gate")  # routers: tiny, and a wrong choice costs most
_GATE_FORMAT = Format(8, 64)
# Added, not multiplied by: nothing is gained.
_NEVER = ("model.embed_positions",)


@dataclass(frozen=True)
class Layer:
    """A layer of the checkpoint that can be quantized."""

    path: str  # the checkpoint's name of it
    modules: tuple[str, ...]  # the decoder's layers that its rows become
    columns: int  # of its unquantized rows
    stored: Format | None  # how it is quantized already


@dataclass(frozen=True)
class Rule:
    """Layers whose path matches `pattern` (a glob) get `format`; None: they stay floats."""

    pattern: str
    format: Format | None

    def matches(self, layer: Layer) -> bool:
        return any(fnmatchcase(path, self.pattern) for path in (layer.path, *layer.modules))


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key of tensor names that puts layer 2 before layer 10; MLX reads them in any order."""
    parts = name.split(".")
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def base_format(mode: str, bits: int | None, group_size: int | None) -> Format:
    """The format that most layers get. Raises InputError for one that MLX does not have."""
    if mode not in MODES:
        raise InputError(f"there is no mode {mode!r}; choose {', '.join(MODES)}")
    if mode in FLOAT_MODES:
        known = FLOAT_MODES[mode]
        if (bits or known.bits, group_size or known.group_size) != (known.bits, known.group_size):
            size = f"{known.bits} bits in groups of {known.group_size}"
            raise InputError(f"{mode} has {size}; leave out bits and group")
        return known
    default = Format()
    wanted = Format(bits or default.bits, group_size or default.group_size)
    if wanted.bits not in AFFINE_BITS or wanted.group_size not in AFFINE_GROUPS:
        raise InputError(
            f"{wanted} were asked for; MLX has {', '.join(map(str, AFFINE_BITS))} bits in groups "
            f"of {', '.join(map(str, AFFINE_GROUPS))}"
        )
    return wanted


def parse_rule(text: str, base: Format) -> Rule:
    """PATTERN=BITS[:GROUP], PATTERN=MODE or PATTERN=float, as a rule beside `base`.

    Without a GROUP, the layers have the others' group, or 64 where that is no affine one. Raises
    InputError for anything else.
    """
    pattern, equals, value = text.rpartition("=")
    if value == "float" and pattern:
        return Rule(pattern, None)
    if value in FLOAT_MODES and pattern:
        return Rule(pattern, FLOAT_MODES[value])
    match = re.fullmatch(r"(\d+)(?::(\d+))?", value)
    if not (equals and pattern and match):
        raise InputError(
            f"the rule {text!r} does not read PATTERN=BITS, PATTERN=BITS:GROUP, PATTERN=MODE or "
            "PATTERN=float, like '*down_proj=6:32'"
        )
    group = match[2] or (base.group_size if base.mode == "affine" else None)
    return Rule(pattern, base_format("affine", int(match[1]), group and int(group)))


def find_layers(
    weights: dict[str, mx.array], family: Family, decoder: Decoder
) -> tuple[list[Layer], set[str]]:
    """The layers among `weights` that become linear layers or tables of `decoder`, in order.

    The decoder has no weights yet; where the checkpoint is quantized, its layers are, too. The
    second result is the layers that the decoder has no place for: a head that repeats the table.
    """
    stems, became = _trace(weights, family)
    modules = dict(decoder.named_modules())
    found: dict[str, list[str]] = {stem: [] for stem in stems}
    placed, unplaced = set(), set()
    for path, marks in became.items():
        numbers = np.unique(np.array(marks)) if marks.dtype == mx.int32 else []
        owners = [stems[number] for number in numbers]
        (placed if path in modules else unplaced).update(owners)
        if path in _NEVER or not _is_quantizable(modules.get(path)):
            continue
        for stem in owners:
            found[stem].append(path)
    layers = [_layer(stem, paths, modules[paths[0]]) for stem, paths in found.items() if paths]
    return layers, unplaced - placed


def _trace(weights: dict[str, mx.array], family: Family) -> tuple[list[str], dict[str, mx.array]]:
    """The layers among `weights`, and of which of them each of the decoder's consists.

    Families move rows only. So each weight [.., rows, columns] gets a stand-in [.., rows, 1] that
    holds its number, and the family puts it where the weight goes.
    """
    stems = [
        name.removesuffix(_ENDING)
        for name in sorted(weights, key=natural)
        if name.endswith(_ENDING) and weights[name].ndim > 1
    ]
    weights = dict(weights)
    for index, stem in enumerate(stems):
        shape = (*weights[stem + _ENDING].shape[:-1], 1)
        weights[stem + _ENDING] = mx.full(shape, index, mx.int32)
    converted = family.convert(weights, family.config)
    return stems, {n.removesuffix(_ENDING): a for n, a in converted.items() if n.endswith(_ENDING)}


def _is_quantizable(module: nn.Module | None) -> bool:
    return module is not None and ("scales" in module or hasattr(module, "to_quantized"))


def _layer(path: str, modules: list[str], module: nn.Module) -> Layer:
    """`module` is one of the decoder's `modules`; all have the same columns and format."""
    columns, stored = module.weight.shape[-1], None
    if "scales" in module:
        columns = 32 * columns // module.bits
        stored = Format(module.bits, module.group_size, module.mode)
    return Layer(path, tuple(modules), columns, stored)


def make_plan(
    layers: Sequence[Layer], count: int, base: Format, recipe: str | None, rules: Sequence[Rule]
) -> tuple[dict[str, Format | None], dict[str, int]]:
    """Each layer's format, by path, None for floats; and the columns of those that must be floats.

    `count` is the decoder's layers, N. A rule counts more than the recipe, the last that matches
    more than those before. Layers whose columns are no multiple of the group stay floats.
    Raises InputError for a rule that matches nothing, and when no layer is left to quantize.
    """
    tied = not any("lm_head" in layer.modules for layer in layers)
    plan: dict[str, Format | None] = {}
    too_narrow: dict[str, int] = {}
    for layer in layers:
        wanted: Format | None = base
        if recipe and _is_sensitive(layer, count, tied):
            wanted = Format(RECIPES[recipe][1], base.group_size)
        if layer.modules[0].endswith(_GATES):
            wanted = _GATE_FORMAT
        if matching := [rule for rule in rules if rule.matches(layer)]:
            wanted = matching[-1].format
        if wanted and layer.columns % wanted.group_size:
            wanted, too_narrow[layer.path] = None, layer.columns
        plan[layer.path] = wanted
    for rule in rules:
        if not any(rule.matches(layer) for layer in layers):
            raise InputError(
                f"no layer matches {rule.pattern!r}; the layers are named like "
                f"{layers[-1].path!r}, and a * stands for any part of a name"
            )
    if not any(plan.values()):
        raise InputError(
            f"no layer would be quantized: {len(too_narrow)} of {len(layers)} have rows that are "
            "no multiple of their group; choose a smaller one, or other rules"
        )
    return plan, too_narrow


def _is_sensitive(layer: Layer, count: int, tied: bool) -> bool:
    """Whether a recipe gives the layer its higher precision: mlx-lm's choice, after llama.cpp's.

    The value and down projections of the first and last eighth of the layers and of every third
    between them; the head, and the table where it is the head.
    """
    for path in layer.modules:
        if path == "lm_head" or (tied and path == "model.embed_tokens"):
            return True
        match = re.match(r"model\.layers\.(\d+)\..*(v_proj|down_proj)$", path)
        if match:
            index, eighth = int(match[1]), count // 8
            if index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2:
                return True
    return False
