"""mlx-lm's adapters: https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md

adapter_config.json has all settings of the training; the three that mlx-lm's own loader reads are
read here. adapters.safetensors has LAYER.lora_a [in, r], LAYER.lora_b [r, out] and, for DoRA,
LAYER.m [out]; of stacked experts X, lora_a [X, r, in] and lora_b [X, out, r].
"""

import math
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ..families.common.reader import ConfigReader
from .adapter import Factor, LowRank
from .factors import Shapes, as_stored, check, group_by_layer, require_roles, transposed
from .names import TABLES

_A, _B, _MAGNITUDE = "lora_a", "lora_b", "m"
_READ = ("fine_tune_type", "lora_parameters")


def read_mlx_lm(
    config: dict[str, Any], where: str, file: Path, shapes: Shapes
) -> tuple[dict[str, LowRank], dict[str, Factor], bool]:
    """As `read_peft`. The number of layers, `num_layers`, is seen from the tensors."""
    reader = ConfigReader({key: config[key] for key in _READ if key in config}, where)
    kind = reader.take("fine_tune_type", str, "lora")
    if kind not in ("lora", "dora"):
        raise InputError(f"{where} has fine_tune_type {kind!r}; Pippin has 'lora' and 'dora'")
    settings = dict(reader.take("lora_parameters", dict))
    for key in ("dropout", "keys"):  # of training; which layers, as the tensors say
        settings.pop(key, None)
    parameters = ConfigReader(settings, f"{where} under lora_parameters")
    rank, scale = parameters.positive("rank"), parameters.take("scale", float)
    parameters.finish()
    if not math.isfinite(scale):
        raise InputError(f"{where} has scale = {scale} under lora_parameters; expected a number")

    layers = group_by_layer(shapes, {role: role for role in (_A, _B, _MAGNITUDE)})
    updates = {}
    for layer, roles in layers.items():
        require_roles(file, layer, roles, {_A, _B, *([_MAGNITUDE] if kind == "dora" else [])})
        magnitude = as_stored(shapes, roles[_MAGNITUDE]) if kind == "dora" else None
        if len(shapes[roles[_A]]) == 3:
            down, up = as_stored(shapes, roles[_A]), as_stored(shapes, roles[_B])
        elif layer.rpartition(".")[2] in TABLES:  # [V, r] and [r, E], for the table [V, E]
            down, up = as_stored(shapes, roles[_B]), as_stored(shapes, roles[_A])
        else:
            down, up = transposed(shapes, roles[_A]), transposed(shapes, roles[_B])
        updates[layer] = check(file, layer, LowRank(down, up, scale, magnitude), rank)
    used = {name for roles in layers.values() for name in roles.values()}
    if others := sorted(shapes.keys() - used):
        raise InputError(f"{file} has {others[0]!r}; expected lora_a, lora_b or m")
    return updates, {}, True
