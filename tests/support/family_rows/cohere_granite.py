"""Command-R."""

from .row import Row

_SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
_LENGTHS = (1, 2, 65)

ROWS: tuple[Row, ...] = (
    Row(
        "cohere",
        "cohere",
        "Cohere",
        {**_SIZES, "logit_scale": 0.3},
        _LENGTHS,
        "Command-R: parallel block with one norm, LayerNorm without bias, interleaved RoPE; "
        "logits scaled",
    ),
    Row(
        "cohere-head-norms",
        "cohere",
        "Cohere",
        {**_SIZES, "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
        _LENGTHS,
        "Command-R+: each head has a norm; biases on attention",
    ),
    Row(
        "cohere2",
        "cohere2",
        "Cohere2",
        {**_SIZES, "num_hidden_layers": 4, "max_position_embeddings": 512, "sliding_window": 16},
        (15, 16, 17, 32, 300),
        "Command-R7B: three layers with RoPE and a window of 16 tokens, the fourth with neither",
    ),
    Row(
        "cohere2-alternating",
        "cohere2",
        "Cohere2",
        {
            **_SIZES,
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
        },
        (23, 24, 25, 48),
        "layers in another order; biases on attention",
    ),
)
