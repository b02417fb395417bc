"""Phi and GLM-4."""

from typing import Any

from .llama_like import SIZES
from .row import Row

_LENGTHS = (1, 2, 65)
_SWITCH = 64  # tokens, on which the longrope rows were trained
_AROUND_SWITCH = (63, 64, 65, 90, 128)


def _longrope(pairs: int, **settings: Any) -> dict[str, Any]:
    """Factors as public checkpoints have them: near 1 for short sequences, rising for long ones."""
    short = [1.0 + 0.05 * pair for pair in range(pairs)]
    long = [1.0 + 0.9 * pair**1.5 for pair in range(pairs)]
    return {
        "max_position_embeddings": 256,
        "original_max_position_embeddings": _SWITCH,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "short_factor": short,
            "long_factor": long,
            **settings,
        },
    }


ROWS: tuple[Row, ...] = (
    Row("phi3", "phi3", "Phi3", SIZES, _LENGTHS, "projections in one piece"),
    Row(
        "phi3-window",
        "phi3",
        "Phi3",
        {**SIZES, "num_key_value_heads": 4, "max_position_embeddings": 1024, "sliding_window": 16},
        (15, 16, 17, 32, 300),
        "a window of 16 tokens in all layers",
    ),
    Row(
        "phi3-longrope",
        "phi3",
        "Phi3",
        {**SIZES, **_longrope(8)},
        _AROUND_SWITCH,
        "sequences of more than 64 tokens are rotated otherwise, from their first token on",
        switch=_SWITCH,
    ),
    Row(
        "phi3-longrope-partial",
        "phi3",
        "Phi3",
        {
            **SIZES,
            "hidden_size": 256,
            "tie_word_embeddings": True,
            **_longrope(24, partial_rotary_factor=0.75),
        },
        _AROUND_SWITCH,
        "Phi-4-mini: three quarters of a head turn; one table",
        switch=_SWITCH,
    ),
    Row(
        "phi3-longrope-odd-part",
        "phi3",
        "Phi3",
        {**SIZES, "hidden_size": 128, **_longrope(10, partial_rotary_factor=0.625)},
        _AROUND_SWITCH,
        "ten pairs turn, which GroupQueryAttention does not take: turned before it",
        switch=_SWITCH,
    ),
    Row(
        "phi3-longrope-window",
        "phi3",
        "Phi3",
        {**SIZES, **_longrope(8, attention_factor=1.1), "sliding_window": 70},
        (63, 64, 65, 69, 70, 71, 140),
        "longrope with a magnitude of its own, and a window of 70 tokens",
        switch=_SWITCH,
    ),
    Row(
        "phi",
        "phi",
        "Phi",
        {**SIZES, "num_key_value_heads": 4, "hidden_size": 128},
        _LENGTHS,
        "Phi-1, 1.5 and 2: parallel block, LayerNorm, half of a head turns, biases everywhere",
    ),
    Row(
        "phi-grouped-head-norms",
        "phi",
        "Phi",
        {
            **SIZES,
            "hidden_size": 128,
            "qk_layernorm": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.25,
            },
        },
        _LENGTHS,
        "grouped queries; LayerNorm on each head of q and k; a quarter of a head turns",
    ),
    Row(
        "glm",
        "glm",
        "Glm",
        {**SIZES, "head_dim": 32},
        _LENGTHS,
        "GLM-4 of 2024: half of a head turns, by neighbouring pairs; biases on q, k and v",
    ),
    Row(
        "glm4",
        "glm4",
        "Glm4",
        {**SIZES, "head_dim": 32},
        _LENGTHS,
        "half of a head turns, by neighbouring pairs; four norms; biases on q, k and v",
    ),
    Row(
        "glm4-no-biases-tied",
        "glm4",
        "Glm4",
        {
            **SIZES,
            "head_dim": 32,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 1.0,
            },
        },
        _LENGTHS,
        "no biases, one table; whole heads turn, by neighbouring pairs",
    ),
)
