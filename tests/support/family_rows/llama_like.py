"""Llama and what differs from it little: Mistral."""

from typing import Any

from .row import NO_GQA_HEADS, Row

# Heads of 16 dimensions, the least that the dialect gqa takes.
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
_LENGTHS = (1, 2, 65)


def _rope(rope_type: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0, **settings}}


ROWS: tuple[Row, ...] = (
    Row("llama", "llama", "Llama", SIZES, _LENGTHS, "grouped queries (GQA)"),
    Row(
        "llama-mha-tied",
        "llama",
        "Llama",
        {**SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True},
        _LENGTHS,
        "a key/value head for each query head; one table for embedding and unembedding",
    ),
    Row(
        "llama-mqa-biases",
        "llama",
        "Llama",
        {**SIZES, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
        _LENGTHS,
        "one key/value head; biases on all projections",
    ),
    Row(
        "llama-odd-sizes",
        "llama",
        "Llama",
        {
            **SIZES,
            "hidden_size": 42,
            "num_attention_heads": 6,
            "intermediate_size": 71,
            "vocab_size": 101,
            "head_dim": 10,
        },
        _LENGTHS,
        "head_dim apart from hidden_size / heads",
        refusals={"gqa": NO_GQA_HEADS},
    ),
    Row(
        "llama-rope-llama3",
        "llama",
        "Llama",
        {
            **SIZES,
            **_rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        },
        (63, 64, 65, 130, 256),
        "Llama 3.1's RoPE, trained on 64 tokens, stretched to 256",
    ),
    Row(
        "llama-rope-linear",
        "llama",
        "Llama",
        {**SIZES, **_rope("linear", factor=2.5)},
        (1, 101, 102, 103, 256),
        "RoPE with positions divided by 2.5",
    ),
    Row(
        "llama-rope-dynamic",
        "llama",
        "Llama",
        {**SIZES, "max_position_embeddings": 64, **_rope("dynamic", factor=2.0)},
        (1, 63, 64),
        "dynamic NTK, within the trained length",
    ),
    Row(
        "llama-rope-longrope",
        "llama",
        "Llama",
        {
            **SIZES,
            **_rope(
                "longrope",
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                long_factor=[1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
                factor=4.0,
                original_max_position_embeddings=64,
            ),
        },
        (63, 64, 65, 130),
        "longrope: other frequencies for more than 64 tokens",
        switch=64,
    ),
    Row(
        "llama-rope-yarn",
        "llama",
        "Llama",
        {**SIZES, **_rope("yarn", factor=4.0, original_max_position_embeddings=64)},
        (63, 64, 65, 130, 256),
        "YaRN, trained on 64 tokens, stretched to 256",
    ),
    Row(
        "mistral-no-window",
        "mistral",
        "Mistral",
        {**SIZES, "sliding_window": None},
        _LENGTHS,
        "Mistral 0.2 and later",
    ),
    Row(
        "mistral-window",
        "mistral",
        "Mistral",
        {**SIZES, "max_position_embeddings": 1024, "sliding_window": 16},
        (15, 16, 17, 32, 300),  # 300: caches have moved their tokens
        "Mistral 0.1: a window of 16 tokens in all layers",
    ),
    Row(
        "mistral-window-yarn",
        "mistral",
        "Mistral",
        {
            **SIZES,
            "sliding_window": 24,
            **_rope("yarn", factor=4.0, original_max_position_embeddings=64),
        },
        (23, 24, 25, 48, 63, 64, 65),
        "a window and YaRN, trained on 64 tokens",
    ),
)
