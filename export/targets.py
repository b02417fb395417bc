"""What execution providers are known to take, and what is exported differently for their sake.

The tests run the CPU provider, native and compiled to WebAssembly, and WebGPU on a GPU in software.
For the others, an exported graph is compared with the list of operators that the provider
publishes: what is not on it, it leaves to onnxruntime's CPU provider. Lists as read in November
2026, cut down to operators that this exporter emits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onnx import ModelProto, NodeProto

from ..mlx_model.config import ModelConfig
from ..runtime.errors import InputError
from .settings import DIALECTS, KV_TYPES, WEIGHTS, Settings

Takes = Callable[[NodeProto], bool]  # whether the provider takes this form of the operator


@dataclass(frozen=True)
class Target:
    """One provider. What is not said is as for the CPU."""

    provider: str  # what onnxruntime calls it
    differences: str = ""  # for people
    dialects: tuple[str, ...] = DIALECTS  # the first is the default
    weights: tuple[str, ...] = WEIGHTS
    kv: tuple[str, ...] = KV_TYPES
    packed: bool = True  # q, k and v may be one product
    softcap: bool = True  # GroupQueryAttention caps scores
    int8: bool = False  # its quantized products are made for activations in int8
    operators: frozenset[str] | None = None  # None: all
    forms: Mapping[str, Takes] = field(default_factory=lambda: MappingProxyType({}))
    ran: bool = False  # whether the tests run an exported graph on it

    @property
    def default_weights(self) -> str:
        return "q4" if "q4" in self.weights else self.weights[0]

    def left_over(self, model: ModelProto) -> list[str]:
        """The operators of `model` that the provider leaves to the CPU, of which at least some."""
        found = set()
        for node in model.graph.node:
            known = self.operators is None or node.op_type in self.operators
            if not known or not self.forms.get(node.op_type, lambda _: True)(node):
                found.add(node.op_type)
        return sorted(found)


_BASIC = frozenset({
    "Add", "Cast", "Concat", "Cos", "Div", "Gelu", "Gemm", "LayerNormalization", "MatMul", "Mul",
    "Pow", "Range", "ReduceSum", "Relu", "Reshape", "Shape", "Sigmoid", "Sin", "Slice", "Squeeze",
    "Sub", "Tanh", "Unsqueeze",
})  # fmt: skip
_CONTRIB = frozenset({
    "GroupQueryAttention", "MatMulNBits", "RotaryEmbedding", "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
})  # fmt: skip


def _integer(node: NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)


TARGETS = {
    "cpu": Target("CPUExecutionProvider", int8=True, ran=True),
    # onnxruntime-web's WebAssembly is the CPU provider. transformers.js 3 makes float caches only.
    "web": Target(
        "wasm", "The KV cache is in floats, which every transformers.js makes.",
        kv=("fp32", "fp16"), ran=True,
    ),
    # onnxruntime/core/providers/webgpu/webgpu_execution_provider.cc and
    # contrib_ops/webgpu/webgpu_contrib_kernels.cc; GroupQueryAttention there reads `softcap` and
    # does not use it (bert/group_query_attention.cc), and its caches have the type of q.
    "webgpu": Target(
        "WebGpuExecutionProvider", "The KV cache has the activations' type.",
        dialects=("gqa",), kv=("fp32", "fp16"), softcap=False, ran=True,
        operators=_BASIC | _CONTRIB | {
            "ArgMax", "Clip", "CumSum", "Equal", "Gather", "Greater", "If", "LessOrEqual", "Neg",
            "QMoE", "QuickGelu", "Where",
        },
    ),
    # tools/ci_build/github/apple/coreml_supported_mlprogram_ops.md: no attention, no rotation,
    # no RMSNormalization, of either domain; Slice with constant bounds.
    "coreml": Target(
        "CoreMLExecutionProvider", "ONNX's own operators, weights in floats.",
        dialects=("standard",), weights=("fp16", "fp32"), kv=("fp32", "fp16"),
        operators=(_BASIC | {"Clip", "Max", "QuickGelu"}) - {"Slice"},
    ),
    # docs/OperatorKernels.md: GroupQueryAttention takes float16 and bfloat16 only.
    "cuda": Target(
        "CUDAExecutionProvider", "Float16 throughout, which alone its attention takes.",
        dialects=("gqa",), weights=("fp16",), kv=("fp16",),
        operators=_BASIC | _CONTRIB | {
            "ArgMax", "Clip", "CumSum", "Equal", "Gather", "Greater", "LessOrEqual", "Max", "Min",
            "MoE", "Neg", "QMoE", "QuickGelu", "TopK", "Where",
        },
    ),
    # docs/OP_ARCHITECTURE.md of github.com/justinchuby/onnxruntime-mlx (PyPI: onnxruntime-ep-mlx):
    # q, k and v apart, nothing after the rotation's tables, MatMulNBits of 4 bits and blocks of 32.
    "mlx-ep": Target(
        "MLXExecutionProvider", "q, k and v are three products; zero points are uint8.",
        dialects=("gqa",), weights=("q4", "fp32"), kv=("fp32",), packed=False,
        operators=_BASIC | _CONTRIB | {
            "ArgMax", "BitShift", "BitwiseAnd", "Clip", "CumSum", "Equal", "Gather", "Greater",
            "LessOrEqual", "Max", "Min", "Neg", "TopK", "Where",
        },
        forms={
            "GroupQueryAttention": lambda node: len(node.input) <= 9 and bool(node.input[1]),
            "MatMulNBits": lambda n: (_integer(n, "bits"), _integer(n, "block_size")) == (4, 32),
        },
    ),
}  # fmt: skip


def check_target(name: str, config: ModelConfig, settings: Settings) -> None:
    """Raise InputError for what the provider cannot do with such a graph."""
    target = TARGETS[name]
    for what, chosen, known in (
        ("dialect", settings.dialect, target.dialects),
        ("weights", settings.weights, target.weights),
        ("KV cache", settings.kv, target.kv),
    ):
        if chosen not in known:
            raise InputError(
                f"{target.provider} takes no {what} {chosen}; "
                f"for {name}, choose {' or '.join(known)}"
            )
    if config.softcap is not None and not target.softcap:
        raise InputError(
            f"the model caps its attention's scores, which {target.provider} leaves out silently; "
            "export it for cpu or web"
        )
