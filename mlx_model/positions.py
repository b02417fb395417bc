"""Rotary position embeddings: every variant becomes inverse frequencies and a magnitude, here.

RoPE (Su et al. 2021, arXiv:2104.09864) turns the pair (x_i, x_{i+D/2}) of a head by the angle
position · inv_freq_i. Angles are float32 products, as in the code the models were trained with:
a more precise angle would be a different model at long range.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RopeConfig:
    """Which rotation a layer applies to q and k."""

    base: float  # theta of the paper
    dims: int  # leading dimensions of a head that turn; the whole head_dim as a rule
    scaling: str = "default"  # "default", "linear", "llama3" or "custom"
    factor: float = 1.0  # linear, llama3: how far the context is stretched
    low_freq_factor: float = 1.0  # llama3: wavelengths above original_context / this are stretched
    high_freq_factor: float = 4.0  # llama3: wavelengths below original_context / this are kept
    original_context: int = 8192  # llama3: the context before stretching, tokens
    factors: tuple[float, ...] = ()  # custom: one divisor of the inverse frequency a pair [dims/2]


def inverse_frequencies(rope: RopeConfig) -> np.ndarray:
    """Radians per position of each pair, float32 [dims/2].

    "linear" divides all of them (position interpolation, arXiv:2306.15595); "llama3" divides the
    long wavelengths and blends between (Llama 3.1, arXiv:2407.21783); "custom" divides each by a
    factor that the checkpoint stores.
    """
    exponents = np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims
    frequencies = 1.0 / rope.base**exponents
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.scaling == "custom":
        frequencies = frequencies / np.asarray(rope.factors, dtype=np.float64)
    return frequencies.astype(np.float32)


def _llama3(frequencies: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Keep short wavelengths, divide long ones by `factor`, blend linearly in between."""
    turns = rope.original_context * frequencies / (2 * math.pi)  # full turns in the old context
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / rope.factor


def rope_tables(rope: RopeConfig, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the angles for positions 0…length−1, each float32 [length, dims/2]."""
    positions = np.arange(length, dtype=np.float32)
    angles = positions[:, None] * inverse_frequencies(rope)[None, :]
    return np.cos(angles), np.sin(angles)
