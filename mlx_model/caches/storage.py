"""What a cache keeps of a token's key and value, and how attention reads it."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ...kernels.checks import check_layout
from ...kernels.dispatch import attention, quantized_attention
from ...kernels.spec import AttentionSpec


class Storage(Protocol):
    """Parts are arrays [B, K, L, ·] with the tokens along their third axis."""

    names: tuple[str, ...]  # one a part

    def encode(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """The parts of keys and values [B, K, L, D]."""

    def decode(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        """Keys and values [B, K, L, D] as attention reads them from `parts`."""

    def attend(
        self, q: mx.array, parts: list[mx.array], spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        """`kernels.dispatch.attention` of q [B, H, L, D] over the parts of S tokens."""

    def row_bytes(self, head_dim: int, dtype: mx.Dtype) -> int:
        """Bytes that one head's key and value of one token take, computed in `dtype`."""


class Plain:
    """Keys and values as they come, each [B, K, L, D]."""

    names = ("keys", "values")

    def encode(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [keys, values]

    def decode(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        keys, values = parts
        return keys, values

    def attend(
        self, q: mx.array, parts: list[mx.array], spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        return attention(q, *parts, spec, **arrays)

    def row_bytes(self, head_dim: int, dtype: mx.Dtype) -> int:
        return 2 * head_dim * dtype.size


@dataclass(frozen=True)
class Affine:
    """MLX's affine layout along D: words uint32 [B, K, L, D·bits/32], and a scale and a bias for
    each `group_size` values, [B, K, L, D/group_size] in the type of the keys."""

    bits: int  # 4 or 8
    group_size: int  # 32, 64 or 128 values; divides D

    names = ("key_words", "key_scales", "key_biases", "value_words", "value_scales", "value_biases")

    def encode(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """Raises ValueError when heads of D values cannot be packed so."""
        check_layout(keys.shape[-1], self.bits, self.group_size)
        layout = {"bits": self.bits, "group_size": self.group_size}
        return [*mx.quantize(keys, **layout), *mx.quantize(values, **layout)]

    def decode(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        layout = {"bits": self.bits, "group_size": self.group_size}
        return mx.dequantize(*parts[:3], **layout), mx.dequantize(*parts[3:], **layout)

    def attend(
        self, q: mx.array, parts: list[mx.array], spec: AttentionSpec, **arrays: object
    ) -> mx.array | tuple[mx.array, mx.array]:
        layout = {"bits": self.bits, "group_size": self.group_size}
        k, v = tuple(parts[:3]), tuple(parts[3:])
        return quantized_attention(q, k, v, spec, **layout, **arrays)

    def row_bytes(self, head_dim: int, dtype: mx.Dtype) -> int:
        words, groups = head_dim * self.bits // 8, head_dim // self.group_size
        return 2 * (words + 2 * groups * dtype.size)  # a scale and a bias a group


PLAIN = Plain()
