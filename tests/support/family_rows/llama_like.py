"""Llama and what differs from it little: Mistral, SmolLM3, Granite, OLMo 2, Arcee."""

from typing import Any

from .row import NO_GQA_HEADS, Row

# Heads of 16 dimensions, the least that onnxruntime's GroupQueryAttention turns.
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
_LENGTHS = (1, 2, 65)


def rope(rope_type: str, **settings: Any) -> dict[str, Any]:
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
        "llama-heads-of-24",
        "llama",
        "Llama",
        {**SIZES, "head_dim": 24},
        _LENGTHS,
        "heads that GroupQueryAttention attends with and does not turn: turned before it",
    ),
    Row(
        "llama-rope-llama3",
        "llama",
        "Llama",
        {
            **SIZES,
            **rope(
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
        {**SIZES, **rope("linear", factor=2.5)},
        (1, 101, 102, 103, 256),
        "RoPE with positions divided by 2.5",
    ),
    Row(
        "llama-rope-dynamic",
        "llama",
        "Llama",
        {**SIZES, "max_position_embeddings": 64, **rope("dynamic", factor=2.0)},
        (63, 64, 65, 80, 128),
        "dynamic NTK, trained on 64 tokens: each longer sequence is rotated in a way of its own",
        switch=64,
        grows=True,
    ),
    Row(
        "llama-rope-longrope",
        "llama",
        "Llama",
        {
            **SIZES,
            **rope(
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
        {**SIZES, **rope("yarn", factor=4.0, original_max_position_embeddings=64)},
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
            **rope("yarn", factor=4.0, original_max_position_embeddings=64),
        },
        (23, 24, 25, 48, 63, 64, 65),
        "a window and YaRN, trained on 64 tokens",
    ),
    Row(
        "smollm3",
        "smollm3",
        "SmolLM3",
        {**SIZES, "num_hidden_layers": 4},
        _LENGTHS,
        "the fourth layer is not told positions; one table",
    ),
    Row(
        "smollm3-windows",
        "smollm3",
        "SmolLM3",
        {
            **SIZES,
            "num_hidden_layers": 3,
            "max_position_embeddings": 1024,
            "use_sliding_window": True,
            "sliding_window": 16,
            "no_rope_layers": [0, 1, 0],
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        (15, 16, 17, 32, 300),
        "windows with and without positions; biases everywhere",
    ),
    Row(
        "smollm3-yarn",
        "smollm3",
        "SmolLM3",
        {
            **SIZES,
            "no_rope_layer_interval": 2,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64),
        },
        (63, 64, 65, 256),
        "every second layer is not told positions; YaRN",
    ),
    Row(
        "granite",
        "granite",
        "Granite",
        {
            **SIZES,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 8.0,
        },
        _LENGTHS,
        "multipliers on embeddings, scores, residuals and logits",
    ),
    Row(
        "granite-tied-biases",
        "granite",
        "Granite",
        {
            **SIZES,
            "attention_multiplier": 0.3,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        _LENGTHS,
        "biases on all projections; one table",
    ),
    Row(
        "olmo2",
        "olmo2",
        "Olmo2",
        {**SIZES, "pad_token_id": None},
        _LENGTHS,
        "norms after attention and MLP; norms on all of q and of k",
    ),
    Row(
        "olmo2-biases-tied",
        "olmo2",
        "Olmo2",
        {**SIZES, "attention_bias": True, "tie_word_embeddings": True},
        _LENGTHS,
        "biases in attention; one table",
    ),
    Row("arcee", "arcee", "Arcee", SIZES, _LENGTHS, "an MLP without a gate; ReLU squared"),
    Row(
        "arcee-biases-tied",
        "arcee",
        "Arcee",
        {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        _LENGTHS,
        "biases on all projections; one table",
    ),
)
