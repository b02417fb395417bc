"""The semantic operations that the forward is written in.

Three interpreters implement them: `mlx_ops` computes with MLX, `numpy_ops` with numpy in any
float precision, and the exporter emits ONNX nodes. A layer argument is the `mlx.nn` module that
holds the parameters, so weights, quantization and adapters stay plain MLX for all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.nn as nn

from ..kernels.spec import AttentionSpec
from .positions import RopeConfig

Value = Any  # an mx.array, a numpy array or a value of the ONNX graph
Cache = Any  # the interpreter's own KV cache of one layer


class Ops(Protocol):
    """Shapes by the glossary: B batch, L query length, E hidden, H/K heads, D head_dim, V vocab."""

    def embed(self, table: nn.Module, ids: Value) -> Value:
        """ids [B, L] → rows of the table [B, L, E]."""

    def linear(self, layer: nn.Module, x: Value) -> Value:
        """x [B, L, in] → x·Wᵀ + b [B, L, out]; the layer may be quantized."""

    def project(self, layers: Sequence[nn.Module], x: Value) -> tuple[Value, ...]:
        """Several linear layers of the same x; an interpreter may do them as one."""

    def rms_norm(self, layer: nn.Module, x: Value) -> Value:
        """x / sqrt(mean(x²) + eps) · weight over the last axis, in float32 (arXiv:1910.07467)."""

    def attention(
        self, q: Value, k: Value, v: Value, spec: AttentionSpec, rope: RopeConfig, cache: Cache
    ) -> Value:
        """Turn q and k, append k and v to the cache, attend. q [B, L, H·D]; k, v [B, L, K·D].

        Returns [B, L, H·D].
        """

    def gated(self, activation: str, gate: Value, up: Value) -> Value:
        """activation(gate) · up, elementwise (SwiGLU with "silu", arXiv:2002.05202)."""

    def add(self, x: Value, y: Value) -> Value:
        """The residual sum."""

    def select_rows(self, x: Value) -> Value:
        """x [B, L, E] → the rows whose logits are wanted, as the interpreter was told."""

    def unembed(self, layer: nn.Module, x: Value) -> Value:
        """x [B, L, E] → float32 logits [B, L, V]; the layer is a linear head or the embedding."""
