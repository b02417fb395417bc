"""Gemma 1, 2 and 3."""

from .row import Row

# Few heads, of a size of their own; the vocabulary holds the pad token that the classes name.
_SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
_LENGTHS = (1, 2, 65)
_WINDOW = (15, 16, 17, 32, 300)
_GEMMA3 = {
    **_SIZES,
    "num_hidden_layers": 3,
    "sliding_window": 16,
    "query_pre_attn_scalar": 48,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

ROWS: tuple[Row, ...] = (
    Row(
        "gemma", "gemma", "Gemma", _SIZES, _LENGTHS, "GeGLU, norms by 1 + weight, scaled embeddings"
    ),
    Row(
        "gemma-mqa-untied-biases",
        "gemma",
        "Gemma",
        {
            **_SIZES,
            "num_key_value_heads": 1,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        _LENGTHS,
        "one key/value head, a head of its own, biases in attention",
    ),
    Row(
        "gemma2",
        "gemma2",
        "Gemma2",
        {**_SIZES, "num_hidden_layers": 3, "sliding_window": 16, "query_pre_attn_scalar": 48},
        _WINDOW,
        "a window of 16 tokens in every other layer, capped scores and logits, four norms",
    ),
    Row(
        "gemma2-tight-caps",
        "gemma2",
        "Gemma2",
        {
            **_SIZES,
            "sliding_window": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        _WINDOW,
        "caps that are felt; layer_types",
    ),
    Row(
        "gemma2-no-caps",
        "gemma2",
        "Gemma2",
        {**_SIZES, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        _LENGTHS,
        "no caps, and a window wider than the context",
    ),
    Row(
        "gemma3-text",
        "gemma3_text",
        "Gemma3Text",
        _GEMMA3,
        _WINDOW,
        "norms on q and k; layers with a window have a rotation of their own",
    ),
    Row(
        "gemma3-text-cap",
        "gemma3_text",
        "Gemma3Text",
        {**_SIZES, "num_hidden_layers": 7, "sliding_window": 16, "final_logit_softcapping": 4.0},
        (16, 17, 65),
        "the layer types and the rotations that the family has by itself; capped logits",
    ),
    Row(
        "gemma3",
        "gemma3",
        "Gemma3",
        {
            "text_config": {**_GEMMA3, "vocab_size": 97, "intermediate_size": 80},
            "vision_config": _VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": 96,
            "boi_token_index": 95,
            "eoi_token_index": 94,
        },
        _WINDOW,
        "the language model of one that also sees; what belongs to images is left out",
    ),
)
