"""What families with experts share: how routing is checked, and every public layout of weights."""

import re
from collections.abc import Iterable
from dataclasses import replace

from ....runtime.errors import InputError
from ...config import Experts, ModelConfig
from .reader import ConfigReader
from .weights import Weights, rename, stack

_PARTS = ("gate_proj", "up_proj", "down_proj")
_STEM = r"model\.layers\.\d+\.mlp\.experts"


def with_experts(
    config: ModelConfig, experts: Experts, layers: Iterable[int] | None = None
) -> ModelConfig:
    """`config` with these experts in `layers` (None: in all) in the place of the dense MLP.

    Raises InputError where more experts or groups are to be chosen than there are.
    """
    if experts.per_token > experts.count:
        raise InputError(
            f"config.json routes a token to {experts.per_token} of {experts.count} experts"
        )
    size, rest = divmod(experts.count, experts.groups)
    if rest or not experts.groups >= experts.chosen_groups:
        raise InputError(
            f"config.json has {experts.count} experts in {experts.groups} groups, "
            f"{experts.chosen_groups} of which are chosen; expected equal groups, and no more"
        )
    if experts.groups > 1 and (size < 2 or size * experts.chosen_groups < experts.per_token):
        raise InputError(
            f"config.json has groups of {size} experts; expected 2 or more in each, and "
            f"{experts.per_token} or more in {experts.chosen_groups} groups"
        )
    sparse = range(config.layers) if layers is None else set(layers)
    blocks = (
        replace(block, experts=experts) if index in sparse else block
        for index, block in enumerate(config.blocks)
    )
    return replace(config, blocks=tuple(blocks))


def skip_training_keys(reader: ConfigReader) -> None:
    """Keys by which routers are trained, and what is reported of them."""
    reader.skip("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


def sparse_layers(reader: ConfigReader, layers: int) -> list[int]:
    """Qwen's spelling: every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
    step = reader.positive("decoder_sparse_step", 1)
    dense = reader.take("mlp_only_layers", list, [])
    return [layer for layer in range(layers) if (layer + 1) % step == 0 and layer not in dense]


def stack_experts(weights: Weights, config: ModelConfig) -> Weights:
    """Experts under …mlp.experts → …mlp.experts.{gate,up,down}_proj.weight [X, out, in].

    They may be one layer an expert (N.gate_proj, or Mixtral's N.w1), fused (gate_up_proj
    [X, 2F, E], gate above up, and down_proj) or as mlx-lm has them (…mlp.switch_mlp).
    """
    count = next((b.experts.count for b in config.blocks if b.experts), 0)
    weights = rename(
        weights,
        (r"\.mlp\.switch_mlp\.", ".mlp.experts."),
        (r"(\.mlp\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
        (r"(\.mlp\.experts\.\d+)\.w3\.", r"\1.up_proj."),
        (r"(\.mlp\.experts\.\d+)\.w2\.", r"\1.down_proj."),
        (rf"^({_STEM}\.(?:gate_up_proj|down_proj))$", r"\1.weight"),
    )
    one = rf"(?P<stem>{_STEM})\.(?P<expert>\d+)\.(?P<part>{'|'.join(_PARTS)})"
    weights = stack(weights, one, r"\g<stem>.\g<part>", count)
    return _split_fused(weights)


def _split_fused(weights: Weights) -> Weights:
    """gate_up_proj [X, 2F, …] → gate_proj and up_proj [X, F, …]."""
    result: Weights = {}
    for name, array in weights.items():
        match = re.fullmatch(rf"({_STEM})\.gate_up_proj\.(\w+)", name)
        if match is None:
            result[name] = array
            continue
        half, rest = divmod(array.shape[1] if array.ndim > 1 else 1, 2)
        if rest:
            raise InputError(
                f"the checkpoint's {name} has shape {list(array.shape)}; "
                "expected rows for gate and up in equal numbers"
            )
        result[f"{match[1]}.gate_proj.{match[2]}"] = array[:, :half]
        result[f"{match[1]}.up_proj.{match[2]}"] = array[:, half:]
    return result
