"""Qwen2 and Qwen3."""

from typing import Any

from .llama_like import SIZES, rope
from .row import Row

_LENGTHS = (1, 2, 65)
_QWEN3 = {**SIZES, "head_dim": 32}  # hidden_size / heads is 16


def _window(window: int, first: int) -> dict[str, Any]:
    return {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": first,
        "max_position_embeddings": 1024,
    }


ROWS: tuple[Row, ...] = (
    Row("qwen2", "qwen2", "Qwen2", SIZES, _LENGTHS, "biases on q, k and v"),
    Row(
        "qwen2-tied",
        "qwen2",
        "Qwen2",
        {**SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True},
        _LENGTHS,
        "one table for embedding and unembedding",
    ),
    Row(
        "qwen2-windows",
        "qwen2",
        "Qwen2",
        {**SIZES, **_window(16, first=1)},
        (15, 16, 17, 32, 300),
        "a window of 16 tokens in all layers but the first",
    ),
    Row(
        "qwen2-layer-types",
        "qwen2",
        "Qwen2",
        {
            **SIZES,
            **_window(16, first=1),
            "layer_types": ["sliding_attention", "full_attention"],
        },
        (15, 16, 17, 32, 300),
        "a window where layer_types says so",
    ),
    Row(
        "qwen2-yarn",
        "qwen2",
        "Qwen2",
        {**SIZES, **rope("yarn", factor=4.0, original_max_position_embeddings=64)},
        (63, 64, 65, 130, 256),
        "YaRN, trained on 64 tokens, stretched to 256",
    ),
    Row(
        "qwen2-yarn-beyond",
        "qwen2",
        "Qwen2",
        {
            **SIZES,
            "max_position_embeddings": 64,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64),
        },
        (63, 64, 65, 256),
        "YaRN switched on by its settings alone: four times the stated context",
    ),
    Row(
        "qwen3",
        "qwen3",
        "Qwen3",
        _QWEN3,
        _LENGTHS,
        "norms on each head of q and k; head_dim apart from hidden_size / heads",
    ),
    Row(
        "qwen3-tied-biases",
        "qwen3",
        "Qwen3",
        {**_QWEN3, "tie_word_embeddings": True, "attention_bias": True},
        _LENGTHS,
        "one table; biases in attention",
    ),
    Row(
        "qwen3-windows",
        "qwen3",
        "Qwen3",
        {**_QWEN3, **_window(20, first=1)},
        (19, 20, 21, 40, 300),
        "a window of 20 tokens in all layers but the first",
    ),
    Row(
        "qwen3-yarn",
        "qwen3",
        "Qwen3",
        {
            **_QWEN3,
            **rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=64,
                attention_factor=0.7,
                beta_fast=16.0,
                beta_slow=2.0,
                truncate=False,
            ),
        },
        (63, 64, 65, 256),
        "YaRN with settings of its own",
    ),
)
