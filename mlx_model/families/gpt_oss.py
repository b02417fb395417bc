"""GPT-OSS: attention with sinks, every other layer windowed, and experts with clamped gates.

Its public weights are mxfp4: X_blocks, two E2M1 codes a byte, the first in the low half, and
X_scales in E8M0, one for 32 columns (OCP MX v1.0). That is MLX's layout too, so nothing is
converted.
"""

import re
from typing import TYPE_CHECKING

from ...runtime.errors import InputError
from ..activations import CLAMPED_GATE, GATE_LIMIT, GELU_QUICK
from ..config import BlockConfig, Experts, ModelConfig, Norm
from .common.experts import skip_training_keys, with_experts
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import read_layer_types, read_llama_like, read_shape
from .common.weights import Weights, rename
from .common.windows import FULL, SLIDING, windows_of

if TYPE_CHECKING:
    import mlx.core as mx

QUANT_METHODS = ("mxfp4",)  # of quantization_config, beside MLX's own
_FUSED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias|)")
_LEAVES = {"_blocks": "weight", "": "weight", "_scales": "scales", "_bias": "bias"}


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GPT-OSS config.json."""
    skip_training_keys(reader)
    reader.skip("initial_context_length")  # said in the RoPE settings too
    reader.only("hidden_act", "silu")
    reader.only("swiglu_alpha", GELU_QUICK)
    reader.only("swiglu_limit", GATE_LIMIT)
    if not (reader.states("rope_parameters") or reader.states("rope_scaling")):
        raise InputError("config.json lacks 'rope_scaling'; GPT-OSS states its YaRN settings there")
    shape = read_shape(reader, context=131072, kv_heads=8, head_dim=64)
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context, base=150000.0))
    alternating = [SLIDING if layer % 2 == 0 else FULL for layer in range(shape.layers)]
    kinds = read_layer_types(reader, shape.layers, alternating, (FULL, SLIDING))
    window = reader.take("sliding_window", int, None if reader.has("sliding_window") else 128)
    bias = reader.take("attention_bias", bool, True)
    config = read_llama_like(
        reader,
        shape,
        family="gpt_oss",
        blocks=tuple(BlockConfig(rope, w) for w in windows_of(kinds, window, shape.context)),
        norm=Norm(reader.take("rms_norm_eps", float, 1e-5)),
        activation=CLAMPED_GATE,
        sinks=True,
        attention_bias=bias,
        output_bias=bias,
    )
    experts = Experts(
        count=reader.positive(reader.spelled("num_local_experts", "num_experts"), 128),
        per_token=reader.positive(reader.spelled("num_experts_per_tok", "experts_per_token"), 4),
        feed_forward=config.feed_forward,
        router_bias=True,
        bias=True,
    )
    return with_experts(config, experts)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Take apart gate and up, whose rows alternate; floating-point weights lie as [X, in, out]."""
    result: Weights = {}
    for name, array in rename(weights, (r"\.mlp\.router\.", ".mlp.gate.")).items():
        match = _FUSED.fullmatch(name)
        if match is None:
            result[name] = array
            continue
        stem, part, kind = match.groups()
        array = _rows_second(name, array, kind)
        if part == "down_proj":
            result[f"{stem}.down_proj.{_LEAVES[kind]}"] = array
        elif array.shape[1] != 2 * config.feed_forward:
            raise InputError(
                f"the checkpoint's {name} has {array.shape[1]} rows an expert; "
                f"its config.json calls for {2 * config.feed_forward}"
            )
        else:
            for start, half in enumerate(("gate_proj", "up_proj")):
                result[f"{stem}.{half}.{_LEAVES[kind]}"] = array[:, start::2]
    return result


def _rows_second(name: str, array: "mx.array", kind: str) -> "mx.array":
    """[X, out, …], as the decoder has it."""
    import mlx.core as mx

    dims = {"_blocks": 4, "_bias": 2}.get(kind, 3)
    if array.ndim != dims or (kind == "_blocks" and array.shape[-1] != 16):
        raise InputError(
            f"the checkpoint's {name} has shape {list(array.shape)}; expected {dims} dimensions"
            + (", the last of 16 bytes" if kind == "_blocks" else "")
        )
    if kind == "_blocks":
        return array.flatten(-2).view(mx.uint32)
    return array if kind else array.swapaxes(1, 2)
