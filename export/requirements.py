"""Which onnxruntime a graph needs: older releases compute some of its operators wrongly.

Seen on a CPU, one release after the other, against MLX:

- GroupQueryAttention takes several tokens on a past from 1.20 on, positions and biases from 1.22
  on (input 10 and 11) and sinks from 1.23 on; its window is as wide as stated from 1.24 on, and an
  int8 cache is there from 1.27 on.
- MatMulNBits takes 8 bits from 1.22 on.
- MoE is there from 1.23 on; QMoE's SwiGLU without a limit is wrong until 1.30.
- Opset 23 loads from 1.23 on; its Attention caps scores before it masks them from 1.27 on. Until
  then the cap lets every row see what is masked.
"""

from ..mlx_model.config import ModelConfig
from ..mlx_model.positions import Alibi, Position, RopeConfig
from .settings import Settings


def minimum_onnxruntime(config: ModelConfig, settings: Settings) -> str:
    """The oldest release, "1.24", that computes the model's graph right on a CPU."""
    return max(needed_releases(config, settings).values(), key=lambda r: int(r.split(".")[1]))


def needed_releases(config: ModelConfig, settings: Settings) -> dict[str, str]:
    """The oldest release for each feature of the model's graph, the features in words."""
    needed = _standard(config) if settings.dialect == "standard" else _gqa(config, settings)
    return {feature: f"1.{minor}" for feature, minor in needed.items()}


def _standard(config: ModelConfig) -> dict[str, int]:
    capped = {} if config.softcap is None else {"capped scores in Attention": 27}
    return {"opset 23": 23} | capped


def _gqa(config: ModelConfig, settings: Settings) -> dict[str, int]:
    needed = {"GroupQueryAttention": 20}
    positions = {block.position for block in config.blocks}
    if settings.quantized:
        needed["8-bit weights"] = 22
    if any(_has_more_inputs(p, settings.context) for p in positions):
        needed["positions or biases of attention"] = 22
    if any(block.experts for block in config.blocks):
        needed |= {"quantized experts": 31} if settings.quantized else {"experts": 23}
    if config.sinks:
        needed["sinks in attention"] = 23
    if any(block.window for block in config.blocks):
        needed["sliding window"] = 24
    if settings.kv == "int8":
        needed["int8 KV cache"] = 27
    return needed


def _has_more_inputs(position: Position, context: int) -> bool:
    """Whether GroupQueryAttention is given positions or a bias."""
    if not isinstance(position, RopeConfig):
        return isinstance(position, Alibi)
    two_tables = position.switch is not None and position.scaling != "dynamic"
    return two_tables and position.switch < context
