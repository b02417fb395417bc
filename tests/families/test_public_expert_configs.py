"""config.json of public mixtures of experts, as published: read, and as transformers reads them."""

import copy

import pytest

from pippin.mlx_model.families import read_family
from pippin.runtime.errors import InputError
from support.tiny import config_class

COMMON = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
PUBLIC = {
    "Mixtral": {  # Mixtral 8x7B v0.1
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mixtral",
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "transformers_version": "4.36.0.dev0",
        "vocab_size": 32000,
    },
    "Qwen2Moe": {  # Qwen1.5 MoE A2.7B
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 8192,
        "max_window_layers": 21,
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3Moe": {  # Qwen3 30B A3B
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Olmoe": {  # OLMoE 1B 7B 0924
        "attention_bias": False,
        "clip_qkv": None,
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        "model_type": "olmoe",
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 16,
        "num_key_value_heads": 16,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "vocab_size": 50304,
    },
    "GraniteMoe": {  # Granite 3.0 1B A400M
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_size": 1024,
        "intermediate_size": 512,
        "logits_scaling": 6.0,
        "max_position_embeddings": 4096,
        "model_type": "granitemoe",
        "num_attention_heads": 16,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "Glm4Moe": {  # GLM-4.5 Air
        "attention_bias": True,
        "eos_token_id": [151329, 151336, 151338],
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "model_type": "glm4_moe",
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "GptOss": {  # gpt-oss 20b
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "vocab_size": 201088,
    },
}


@pytest.mark.parametrize("kind", PUBLIC)
def test_public_configs_are_read_as_transformers_reads_them(kind):
    published = {**COMMON, **PUBLIC[kind]}
    theirs = config_class(kind).from_dict(copy.deepcopy(published))
    config = read_family(published).config
    first = getattr(theirs, "first_k_dense_replace", 0)
    assert [block.experts is not None for block in config.blocks] == [
        layer >= first for layer in range(theirs.num_hidden_layers)
    ]
    experts = config.blocks[-1].experts
    count = "num_experts" if hasattr(theirs, "num_experts") else "num_local_experts"
    assert experts.count == getattr(theirs, count)
    assert experts.per_token == theirs.num_experts_per_tok
    assert experts.feed_forward == getattr(
        theirs, "moe_intermediate_size", theirs.intermediate_size
    )
    assert experts.renormalise == getattr(theirs, "norm_topk_prob", True)
    rope = theirs.rope_parameters
    assert config.blocks[-1].position.base == rope["rope_theta"]
    assert config.blocks[-1].position.dims == config.head_dim * rope.get(
        "partial_rotary_factor", 1.0
    )
    assert config.blocks[0].window == (128 if kind == "GptOss" else None)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("Mixtral", {"num_experts_per_tok": 9}, "9 of 8 experts"),
        ("Glm4Moe", {"n_group": 3}, "128 experts in 3 groups"),
        ("Glm4Moe", {"n_group": 4, "topk_group": 5}, "5 of which"),
        ("Glm4Moe", {"n_group": 128}, "groups of 1 experts"),
        ("Glm4Moe", {"n_group": 64, "topk_group": 3}, "8 or more in 3 groups"),
        ("GptOss", {"swiglu_limit": 6.0}, "swiglu_limit = 6.0"),
        ("GptOss", {"swiglu_alpha": 1.0}, "swiglu_alpha = 1.0"),
        ("GptOss", {"rope_scaling": None}, "rope_scaling"),
        ("GptOss", {"experts_per_token": 2}, "experts_per_token = 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind, changes, words):
    with pytest.raises(InputError) as refusal:
        read_family({**COMMON, **PUBLIC[kind], **changes})
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
