"""What kind of graph is wanted, and what was written."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto

WEIGHTS = ("fp32", "fp16", "q4", "int8")
DIALECTS = ("gqa", "standard")
KV_TYPES = ("fp32", "fp16", "int8")
# Variants of a graph on the same weights: one for everyone, one with all activations in int8.
PORTABLE, QUICK = "portable", "quick"
# Names the node of gqa graphs that fails on such a mask, so that onnxruntime's error says why.
PADDED_ON_THE_LEFT = "attention_mask begins with padding, which must stand on the right"


@dataclass(frozen=True)
class Settings:
    """The choices that the interpreters look up."""

    weights: str = "q4"  # one of WEIGHTS
    dialect: str = "gqa"  # one of DIALECTS
    context: int = 2048  # positions that the rotation tables cover, tokens
    exact: bool = False  # no shortcut beyond float32 rounding: for parity, not for speed
    kv: str = "fp32"  # one of KV_TYPES: what the KV cache holds
    packed: bool = True  # q, k and v are one product
    sampling: bool = False  # see `sampling_head`
    # For the quick variant: by a product's name, the channels of its x that have columns apart.
    outliers: Mapping[str, tuple[int, ...]] | None = None

    @property
    def quantized(self) -> bool:
        return self.weights in ("q4", "int8")

    @property
    def dtype(self) -> int:
        """ONNX's type of activations, norms and, unless it is int8, the KV cache."""
        return TensorProto.FLOAT16 if self.weights == "fp16" else TensorProto.FLOAT

    @property
    def suffix(self) -> str:
        """What follows "model" in the graph's file name, as transformers.js expects it."""
        return "" if self.weights == "fp32" else f"_{self.weights}"


@dataclass(frozen=True)
class WrittenGraph:
    """A graph that is in the folder."""

    settings: Settings
    data_files: int  # how many files hold its weights
    target: str  # whom it was made for, a key of `targets.TARGETS`
    left_over: tuple[str, ...]  # operators that the target leaves to the CPU

    @property
    def name(self) -> str:
        """Its file in onnx/."""
        return f"model{self.settings.suffix}.onnx"
