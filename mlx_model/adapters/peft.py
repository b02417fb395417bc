"""PEFT's adapters: https://huggingface.co/docs/peft/developer_guides/checkpoint

adapter_config.json is a LoraConfig; adapter_model.safetensors has the tensors of the wrapped
model: base_model.model.LAYER.lora_A.weight and so on.
"""

import math
import re
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ..families.common.reader import ConfigReader
from .adapter import Factor, LowRank
from .factors import Shapes, as_stored, check, group_by_layer, require_roles, transposed

_PREFIX = "base_model.model."
_A, _B, _TABLE_A, _TABLE_B = "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"
_MAGNITUDE = "lora_magnitude_vector"
_ENDINGS = {
    f"{_A}.weight": _A,
    f"{_B}.weight": _B,
    _TABLE_A: _TABLE_A,
    _TABLE_B: _TABLE_B,
    _MAGNITUDE: _MAGNITUDE,
    f"{_MAGNITUDE}.weight": _MAGNITUDE,
}
# The tensors themselves say which layers are adapted; the rest is about training.
_HARMLESS = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "modules_to_save",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    ]
)
# Ways to begin the training that leave the base's weights as they are.
_PLAIN_INITS = frozenset(["gaussian", "eva", "orthogonal", "mica"])


def read_peft(
    config: dict[str, Any], where: str, file: Path, shapes: Shapes
) -> tuple[dict[str, LowRank], dict[str, Factor], bool]:
    """The updates by layer, the tensors that replace the base's, and whether a tied head follows.

    `where` is the config's path, `shapes` those of the tensors in `file`. Raises InputError, by
    name, for what is not implemented.
    """
    empty: tuple[Any, ...] = ({}, [])
    kept = {k: v for k, v in config.items() if k not in _HARMLESS and v not in empty}
    reader = ConfigReader(kept, where)
    if (kind := reader.take("peft_type", str)) != "LORA":
        raise InputError(f"{where} has peft_type {kind!r}; Pippin implements 'LORA', DoRA included")
    scaling = _Scaling(reader, where)
    use_dora = reader.take("use_dora", bool, False)
    # Which layers are Conv1D is seen from their shapes: the flag is one for all layers.
    reader.take("fan_in_fan_out", bool, False)
    reader.only("bias", "none", "all", "lora_only")  # those that were trained stand in the file
    _refuse_changed_base(reader, where)
    for key in ("use_qalora", "use_bdlora", "lora_bias"):
        reader.only(key, False)
    ties_head = reader.take("ensure_weight_tying", bool, False)
    reader.finish()

    for name in shapes:
        if not name.startswith(_PREFIX):
            raise InputError(f"{file} has {name!r}; expected names that begin with {_PREFIX!r}")
    layers = group_by_layer(shapes, _ENDINGS)
    updates = {}
    for stem, roles in layers.items():
        layer = stem.removeprefix(_PREFIX)
        rank, scale = scaling.of(layer)
        update = _update(file, layer, roles, shapes, scale, use_dora)
        updates[layer] = check(file, layer, update, rank)
    used = {name for roles in layers.values() for name in roles.values()}
    return updates, _replaced(file, shapes, used), ties_head


class _Scaling:
    """Rank and scale of each layer: alpha / r, or alpha / √r (rsLoRA, arXiv:2312.03732)."""

    def __init__(self, reader: ConfigReader, where: str):
        self._where = where
        self._rank = reader.positive("r")
        self._alpha = self._number("lora_alpha", reader.take("lora_alpha", (int, float)))
        self._stabilized = reader.take("use_rslora", bool, False)
        self._ranks = self._patterns(reader, "rank_pattern")
        self._alphas = self._patterns(reader, "alpha_pattern")

    def of(self, layer: str) -> tuple[int, float]:
        """The first pattern that the layer's name ends with decides, as in PEFT."""
        rank = next((int(v) for p, v in self._ranks if p.match(layer)), self._rank)
        alpha = next((v for p, v in self._alphas if p.match(layer)), self._alpha)
        return rank, alpha / (math.sqrt(rank) if self._stabilized else rank)

    def _patterns(self, reader: ConfigReader, key: str) -> list[tuple[re.Pattern[str], float]]:
        found = []
        for pattern, value in reader.take(key, dict, {}).items():
            number = self._number(key, value)
            if key == "rank_pattern" and (number < 1 or number != int(number)):
                raise InputError(f"{self._where} has the rank {value!r} in {key}")
            try:
                found.append((re.compile(rf"(.*\.)?({pattern})$"), number))
            except (re.error, OverflowError, RecursionError) as error:
                raise InputError(
                    f"{self._where} has {pattern!r} in {key}, no regular expression: {error}"
                ) from error
        return found

    def _number(self, key: str, value: Any) -> float:
        try:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and math.isfinite(value):
                return float(value)
        except OverflowError:  # an integer beyond all floats
            pass
        raise InputError(f"{self._where} has {value!r:.60} in {key}; expected a finite number")


def _refuse_changed_base(reader: ConfigReader, where: str) -> None:
    """PiSSA, OLoRA and their like subtract the first adapter from the base's weights."""
    init = reader.take("init_lora_weights", (bool, str), True)
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        raise InputError(
            f"{where} has init_lora_weights = {init!r}, which trains beside a changed base model; "
            "convert it to plain LoRA (PEFT: save_pretrained with "
            "path_initial_model_for_weight_conversion)"
        )


def _update(
    file: Path,
    layer: str,
    roles: dict[str, str],
    shapes: Shapes,
    scale: float,
    use_dora: bool,
) -> LowRank:
    is_table = _TABLE_A in roles or _TABLE_B in roles
    a, b = (_TABLE_A, _TABLE_B) if is_table else (_A, _B)
    require_roles(file, layer, roles, {a, b, *([_MAGNITUDE] if use_dora else [])})
    magnitude = as_stored(shapes, roles[_MAGNITUDE]) if use_dora else None
    if is_table:  # A [r, V] and B [E, r] stand for the transpose of the table [V, E]
        down, up = transposed(shapes, roles[b]), transposed(shapes, roles[a])
        return LowRank(down, up, scale, magnitude, by_column=True)
    return LowRank(as_stored(shapes, roles[a]), as_stored(shapes, roles[b]), scale, magnitude)


def _replaced(file: Path, shapes: Shapes, used: set[str]) -> dict[str, Factor]:
    """What the file has whole: modules_to_save, trained biases, the tables of adapted layers."""
    replaced = {}
    for name in sorted(shapes.keys() - used):
        if "lora_" in name:
            raise InputError(f"{file} has {name!r}, which Pippin does not implement")
        target = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
        replaced[target] = as_stored(shapes, name)
    return replaced
