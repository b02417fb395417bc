"""How attention learns positions; every RoPE variant becomes frequencies and a magnitude, here.

RoPE (Su et al. 2021, arXiv:2104.09864) turns a pair of a head's dimensions by the angle
position · inv_freq_i. Angles are float32 products, as in the code the models were trained with:
a more precise angle would be a different model at long range.
"""

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class RopeConfig:
    """Which rotation a layer applies to q and k."""

    base: float  # theta of the paper
    dims: int  # leading dimensions of a head that turn; the whole head_dim as a rule
    interleaved: bool = False  # pairs are (x_2i, x_2i+1), otherwise (x_i, x_{i+dims/2})
    magnitude: float = 1.0  # multiplies the turned dimensions
    # "default", "linear", "llama3", "yarn", "custom", or "dynamic" before `at` a length
    scaling: str = "default"
    factor: float = 1.0  # linear, llama3, yarn, dynamic: how far the context is stretched
    low_freq_factor: float = 1.0  # llama3: wavelengths above original_context / this are stretched
    high_freq_factor: float = 4.0  # llama3: wavelengths below original_context / this are kept
    original_context: int = 8192  # llama3, yarn: the context before stretching, tokens
    beta_fast: float = 32.0  # yarn: pairs that turn more often in original_context are kept
    beta_slow: float = 1.0  # yarn: pairs that turn less often are stretched
    truncate: bool = True  # yarn: the two borders are rounded to whole pairs
    factors: tuple[float, ...] = ()  # custom: one divisor of the inverse frequency a pair [dims/2]
    # Sequences of more than `switch` tokens turn otherwise throughout: by `long_factors` (longrope,
    # arXiv:2402.13753), or each length by a base of its own (dynamic NTK, arXiv:2309.00071).
    switch: int | None = None
    long_factors: tuple[float, ...] = ()

    def at(self, length: int) -> "RopeConfig":
        """The rotation of a sequence of `length` tokens, which no longer depends on length."""
        if self.switch is None:
            return self
        if self.scaling == "dynamic":
            base = self.base * self.stretch(length) ** (self.dims / (self.dims - 2))
            return replace(self, base=base, scaling="default", factor=1.0, switch=None)
        factors = self.long_factors if length > self.switch else self.factors
        return replace(self, factors=factors, switch=None, long_factors=())

    def stretch(self, length: int) -> float:
        """Dynamic NTK: 1 for sequences up to `switch`, growing linearly from there."""
        return max(self.factor * length / self.switch - (self.factor - 1.0), 1.0)

    def rotated_as(self, length: int) -> int:
        """The shortest sequence, tokens, that turns as one of `length` does; 0 for any short one.

        Cached keys hold for a longer sequence where this is the same.
        """
        if self.switch is None or length <= self.switch:
            return 0
        return length if self.scaling == "dynamic" else self.switch + 1


@dataclass(frozen=True)
class Alibi:
    """A score falls by `slopes[h]` with each token between query and key (arXiv:2108.12409)."""

    slopes: tuple[float, ...]  # [H]


Position = RopeConfig | Alibi | None  # None: attention is not told (NoPE, arXiv:2305.19466)


def inverse_frequencies(rope: RopeConfig) -> np.ndarray:
    """Radians per position of each pair, float32 [dims/2].

    "linear" divides all of them (position interpolation, arXiv:2306.15595); "llama3" divides the
    long wavelengths and blends between (Llama 3.1, arXiv:2407.21783); "yarn" does so with a ramp
    over the pairs (arXiv:2309.00071); "custom" divides each by a factor that the checkpoint stores.
    """
    exponents = np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims
    frequencies = 1.0 / rope.base**exponents
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.scaling == "yarn":
        frequencies = _yarn(frequencies, rope)
    elif rope.scaling == "custom":
        frequencies = frequencies / np.asarray(rope.factors, dtype=np.float64)
    return frequencies.astype(np.float32)


def _llama3(frequencies: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Keep short wavelengths, divide long ones by `factor`, blend linearly in between."""
    turns = rope.original_context * frequencies / (2 * math.pi)  # full turns in the old context
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / rope.factor


def _yarn(frequencies: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Keep the pairs that turn often, divide those that turn seldom, a linear ramp in between."""

    def pair(turns: float) -> float:
        """The pair, as a real number, that makes so many full turns in the old context."""
        ratio = rope.original_context / (turns * 2 * math.pi)
        return rope.dims * math.log(ratio) / (2 * math.log(rope.base))

    first, last = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    span = last - first if last != first else 0.001
    stretch = np.clip((np.arange(rope.dims // 2) - first) / span, 0.0, 1.0)
    return (1.0 - stretch) * frequencies + stretch * frequencies / rope.factor


def rope_tables(rope: RopeConfig, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the angles for positions 0…length−1, each float32 [length, dims/2].

    `rope` must not depend on length (see `RopeConfig.at`).
    """
    positions = np.arange(length, dtype=np.float32)
    angles = positions[:, None] * inverse_frequencies(rope)[None, :]
    magnitude = np.float32(rope.magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude
