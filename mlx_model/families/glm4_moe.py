"""GLM-4.5 and 4.6: sigmoid routing with a correction, within groups (arXiv:2508.06471)."""

import re

from ..config import Experts, HeadNorm, ModelConfig, Norm
from .common.experts import skip_training_keys, stack_experts, with_experts
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import Shape, read_llama_like, read_shape, same_blocks
from .common.weights import Weights, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GLM-4.5 config.json."""
    skip_training_keys(reader)
    # Layers that predict further tokens stand behind the others and are not used.
    reader.skip("num_nextn_predict_layers", "num_mtp_layers")
    shape = read_shape(reader, context=131072, kv_heads=8)
    norm = Norm(reader.take("rms_norm_eps", float, 1e-5))
    defaults = RopeDefaults(shape.head_dim, shape.context, partial=0.5, partly=True)
    config = read_llama_like(
        reader,
        shape,
        family="glm4_moe",
        blocks=same_blocks(shape.layers, read_rope(reader, defaults)),
        norm=norm,
        head_norm=HeadNorm(norm) if reader.take("use_qk_norm", bool, False) else None,
        attention_bias=reader.take("attention_bias", bool, False),
    )
    return _with_experts(reader, config, shape)


def _with_experts(reader: ConfigReader, config: ModelConfig, shape: Shape) -> ModelConfig:
    width = reader.positive("moe_intermediate_size", 1408)
    experts = Experts(
        count=reader.positive(reader.spelled("n_routed_experts", "num_local_experts"), 128),
        per_token=reader.positive("num_experts_per_tok", 8),
        feed_forward=width,
        score="sigmoid",
        renormalise=reader.take("norm_topk_prob", bool, True),
        scale=reader.take("routed_scaling_factor", float, 1.0),
        correction=True,
        groups=reader.positive("n_group", 1),
        chosen_groups=reader.positive("topk_group", 1),
        shared=width * reader.positive("n_shared_experts", 1),
    )
    dense = reader.take("first_k_dense_replace", int, 1)
    return with_experts(config, experts, range(dense, shape.layers))


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Stack the experts, and leave out layers behind the last."""
    renamed = rename(
        {name: array for name, array in weights.items() if not _is_behind(name, config)},
        (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.correction"),
        (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
    )
    return stack_experts(renamed, config)


def _is_behind(name: str, config: ModelConfig) -> bool:
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return match is not None and int(match[1]) >= config.layers
