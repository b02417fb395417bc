"""The few places where mlx-lm's files do not have a checkpoint's tensors under their own names.

mlx-lm keeps the names and layout of Hugging Face's checkpoints but for these: experts are stacked,
and GPT-2's linear layers are turned from [in, out] to [out, in], under a prefix that says so.
Families read both.
"""

import re
from typing import Any

import mlx.core as mx

from .families import Family

_EXPERTS = re.compile(r"\.(experts|switch_mlp|input_linear|output_linear)(\.|$)")
_STACKED = ".mlp.experts."  # the decoder's name of them
# mlx-lm's, by model_type
_SWITCH = {
    "mixtral": ".block_sparse_moe.switch_mlp.",
    "granitemoe": ".block_sparse_moe.switch_mlp.",
    "gpt_oss": ".mlp.experts.",
}
_CONV1D = re.compile(r".*\.(c_attn|c_proj|c_fc)\.weight")


def mlx_lm_layout(
    weights: dict[str, mx.array], config: dict[str, Any], family: Family
) -> dict[str, mx.array]:
    """A checkpoint's `weights` as mlx-lm would store them; nothing is read or computed yet.

    `config` is config.json. Raises InputError as the family's `convert` does.
    """
    model_type = config["model_type"]
    if model_type == "gpt2":
        return _gpt2(weights)
    if not any(block.experts for block in family.config.blocks):
        return weights
    experts = {name: array for name, array in weights.items() if _EXPERTS.search(name)}
    rest = {name: array for name, array in weights.items() if name not in experts}
    switch = _SWITCH.get(model_type, ".mlp.switch_mlp.")
    stacked = family.convert(experts, family.config)
    return rest | {name.replace(_STACKED, switch): array for name, array in stacked.items()}


def _gpt2(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    if any(name.startswith("model.") for name in weights):
        return weights
    return {
        f"model.{name.removeprefix('transformer.')}": (
            array.T if _CONV1D.fullmatch(name) else array
        )
        for name, array in weights.items()
    }
