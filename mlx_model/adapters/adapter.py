"""An adapter as read from disk: what it does to which layer, its tensors still in their file."""

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Factor:
    """A tensor of the adapter's file, as the formula of `LowRank` takes it."""

    name: str  # in the file
    shape: tuple[int, ...]  # once transposed, if it is
    transposed: bool = False  # the file has it the other way round


@dataclass(frozen=True)
class LowRank:
    """The new weight of one layer: W' = W + scale · up · down, of stacked experts one by one.

    LoRA, arXiv:2106.09685. With a magnitude it is DoRA, arXiv:2402.09353: m · W' / ‖W'‖.
    """

    down: Factor  # [r, in], or [experts, r, in]
    up: Factor  # [out, r], or [experts, out, r]
    scale: float
    magnitude: Factor | None = None  # [out] or [in]
    by_column: bool = False  # the magnitude is that of columns, [in]; else of rows, [out]

    @property
    def rank(self) -> int:
        return self.down.shape[-2]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the layer that it fits: [out, in], or [experts, out, in]."""
        return (*self.up.shape[:-1], self.down.shape[-1])

    @property
    def parameters(self) -> int:
        factors = [self.down, self.up, *([self.magnitude] if self.magnitude else [])]
        return sum(math.prod(factor.shape) for factor in factors)


@dataclass(frozen=True)
class Adapter:
    """What one adapter changes; layers and tensors by the names that the adapter gives them."""

    path: Path  # the folder
    file: Path  # the safetensors file in it
    format: str  # "PEFT" or "mlx-lm"
    updates: dict[str, LowRank]  # by layer: "model.layers.0.self_attn.q_proj"
    replaced: dict[str, Factor]  # tensors that take the place of the checkpoint's, by name
    ties_head: bool  # a head that shares the embedding's table shares its change too
    digest: str  # 16 hex digits; others when config or tensors change

    @property
    def layers(self) -> set[str]:
        """All that it changes something of."""
        return {*self.updates, *(name.rpartition(".")[0] for name in self.replaced)}

    @property
    def method(self) -> str:
        """ "LoRA" or "DoRA"."""
        return "DoRA" if any(update.magnitude for update in self.updates.values()) else "LoRA"

    @property
    def parameters(self) -> int:
        low_rank = sum(update.parameters for update in self.updates.values())
        return low_rank + sum(math.prod(factor.shape) for factor in self.replaced.values())
