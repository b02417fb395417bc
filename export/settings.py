"""What kind of graph is wanted."""

from dataclasses import dataclass

from onnx import TensorProto

WEIGHTS = ("fp32", "fp16", "q4", "int8")
DIALECTS = ("gqa", "standard")


@dataclass(frozen=True)
class Settings:
    """The choices that the interpreters look up."""

    weights: str = "q4"  # one of WEIGHTS
    dialect: str = "gqa"  # one of DIALECTS
    context: int = 2048  # positions that the rotation tables cover, tokens
    exact: bool = False  # no shortcut beyond float32 rounding: for parity, not for speed

    @property
    def minimum_onnxruntime(self) -> str:
        """The oldest release that was seen to run such a graph on a CPU."""
        if self.dialect == "standard":
            return "1.23"  # opset 23
        return "1.22" if self.quantized else "1.19"  # 8-bit MatMulNBits; GroupQueryAttention

    @property
    def quantized(self) -> bool:
        return self.weights in ("q4", "int8")

    @property
    def dtype(self) -> int:
        """ONNX's type of activations, norms and the KV cache."""
        return TensorProto.FLOAT16 if self.weights == "fp16" else TensorProto.FLOAT

    @property
    def suffix(self) -> str:
        """What follows "model" in the graph's file name, as transformers.js expects it."""
        return "" if self.weights == "fp32" else f"_{self.weights}"
