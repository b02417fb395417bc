"""The semantic operations that the forward is written in.

Three interpreters implement them: `mlx_ops` computes with MLX, `numpy_ops` with numpy in any
float precision, and the exporter emits ONNX nodes. A layer argument is the `mlx.nn` module that
holds the parameters, so weights, quantization and adapters stay plain MLX for all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.nn as nn

from ..kernels.spec import AttentionSpec
from .config import Experts
from .positions import Position
from .relative_bias import RelativeBias

Value = Any  # an mx.array, a numpy array or a value of the ONNX graph
Cache = Any  # the interpreter's own KV cache of one layer


class Ops(Protocol):
    """Shapes by the glossary: B batch, L query length, E hidden, H/K heads, D head_dim, V vocab."""

    def embed(self, table: nn.Module, ids: Value) -> Value:
        """ids [B, L] → rows of the table [B, L, E]."""

    def add_positions(self, table: nn.Module, offset: int, x: Value, cache: Cache) -> Value:
        """x [B, L, E] + the table's rows offset + p, p the tokens' positions in the sequence."""

    def linear(self, layer: nn.Module, x: Value) -> Value:
        """x [B, L, in] → x·Wᵀ + b [B, L, out]; the layer may be quantized."""

    def project(self, layers: Sequence[nn.Module], x: Value) -> tuple[Value, ...]:
        """Several linear layers of the same x; an interpreter may do them as one."""

    def norm(self, layer: nn.Module, x: Value) -> Value:
        """Normalise the last axis in float32: `nn.RMSNorm`, `norms.PlusOneRMSNorm` or
        `nn.LayerNorm`."""

    def head_norm(self, layer: nn.Module, x: Value, heads: int) -> Value:
        """`norm` of each head's D values by themselves; x [B, L, heads·D], weight [D] or
        [heads, D]."""

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        spec: AttentionSpec,
        position: Position,
        cache: Cache,
        sinks: Value | None = None,
    ) -> Value:
        """Tell q and k their positions, append k and v to the cache, attend.

        q [B, L, H·D]; k, v [B, L, K·D]; sinks an mx.array [H]. Returns [B, L, H·D].
        """

    def experts(self, layer: nn.Module, spec: Experts, x: Value) -> Value:
        """The weighted sum of the chosen experts' outputs [B, L, E]; an `experts.SparseMLP`."""

    def gated(self, activation: str, gate: Value, up: Value) -> Value:
        """activation(gate) · up, elementwise (GLU variants, arXiv:2002.05202)."""

    def activate(self, activation: str, x: Value) -> Value:
        """An activation of activations.py, elementwise."""

    def add(self, x: Value, y: Value) -> Value:
        """The residual sum."""

    def scale(self, x: Value, factor: float) -> Value:
        """x · factor."""

    def multiply(self, x: Value, y: Value) -> Value:
        """x · y, elementwise; the last axis of y may be 1."""

    def clip(self, x: Value, limit: float) -> Value:
        """x limited to −limit…limit."""

    def select_rows(self, x: Value) -> Value:
        """x [B, L, E] → the rows whose logits are wanted, as the interpreter was told."""

    def unembed(self, layer: nn.Module, x: Value) -> Value:
        """x [B, L, E] → float32 logits [B, L, V]; the layer is a linear head or the embedding."""

    def softcap(self, x: Value, cap: float) -> Value:
        """cap · tanh(x / cap) (arXiv:2408.00118)."""


class StackOps(Ops, Protocol):
    """What the stacks of encoders and of encoder-decoders ask for beyond that (see `stack.py`)."""

    def relative_bias(
        self, table: nn.Module, relative: RelativeBias, x: Value, cache: Cache
    ) -> Value:
        """What the scores of x [B, L, E] get by distance [1, H, L, S]; table [buckets, H]."""

    def self_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        spec: AttentionSpec,
        cache: Cache,
        bias: Value | None,
    ) -> Value:
        """Append k and v to the cache, attend; `bias` is what `relative_bias` gave.

        q, k, v [B, L, H·D]. Returns [B, L, H·D].
        """

    def cross_attention(
        self, q: Value, layers: Sequence[nn.Module], spec: AttentionSpec, cache: Cache
    ) -> Value:
        """q [B, L, H·D] attends to the encoder's output that the cache stands for.

        `layers` make keys and values of that output, once for each cache.
        """

    def shift(self, layer: nn.Module, x: Value) -> Value:
        """x + the layer's bias."""
