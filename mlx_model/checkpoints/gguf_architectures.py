"""What each GGUF architecture is in the terms of a Hugging Face checkpoint.

A GGUF leaves out what its architecture fixes; that is stated here, as llama.cpp has it
(https://github.com/ggml-org/llama.cpp/tree/master/src/models). An architecture's tensors are those
that the `gguf` library lists for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...runtime.errors import InputError
from .gguf import GGUFFile
from .gguf_keys import Keys

Config = dict[str, Any]
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_FUSED_MLP = {"ffn_up": "mlp.gate_up_proj"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4_NORMS = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_GPT_OSS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
# GPT-2's linear layers lie as [out, in] in a GGUF, and as [in, out] in transformers' checkpoints;
# under these names, with "model." before them, the family takes them as they are.
_GPT2_TOP = {
    "token_embd": "model.wte",
    "position_embd": "model.wpe",
    "output_norm": "model.ln_f",
    "output": "lm_head",
}
_GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


@dataclass(frozen=True)
class Architecture:
    """How one architecture is translated."""

    model_type: str
    model_class: str  # transformers'
    eps: str = "rms_norm_eps"  # config.json's key for the norms' epsilon
    spelled: Mapping[str, str] = field(default_factory=dict)  # its names for what Llama calls so
    switches: Mapping[str, str] = field(default_factory=dict)  # its bools -> the tensor that tells
    fixed: Mapping[str, Any] = field(default_factory=dict)  # its keys that a GGUF leaves out
    read: Callable[[Keys, GGUFFile, Config], Config] | None = None  # keys beyond Llama's
    turns: bool = True  # has RoPE
    partial: bool = False  # a part of each head may turn
    permuted: bool = False  # rows of q and k are in llama.cpp's order
    plus_one: bool = False  # norms are stored as the 1 + weight that they multiply by
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)  # tensors' names
    block: Mapping[str, str] = field(default_factory=lambda: _BLOCK)
    layers: str = "model.layers"  # before a block's number


def architecture(file: GGUFFile) -> Architecture:
    """The architecture of `file`. Raises InputError for one that is not implemented."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(
            f"{file.path} has the GGUF architecture {name!r}; Pippin reads "
            f"{', '.join(ARCHITECTURES)} (other models: give their safetensors directory)"
        )
    mixture = name == "llama" and file.metadata.get("llama.expert_count")
    return _MIXTRAL if mixture else ARCHITECTURES[name]


def has_tensor(file: GGUFFile, ending: str) -> bool:
    return any(name.endswith(ending) for name in file.tensors)


def _experts(keys: Keys, *, renormalised: bool, named: str = "num_experts") -> Config:
    """What all with experts have in common; whether scores are renormalised, the code says."""
    keys.only("expert_weights_norm", renormalised)
    return {
        named: keys.number("expert_count"),
        "num_experts_per_tok": keys.number("expert_used_count"),
    }


def _expert_width(keys: Keys, file: GGUFFile) -> int:
    """Hidden units of one expert; old files leave the tensors to say it."""
    shapes = [t.shape for n, t in file.tensors.items() if n.endswith("ffn_gate_exps.weight")]
    width = shapes[0][1] if shapes and len(shapes[0]) == 3 else None
    return keys.number("expert_feed_forward_length", width)


def _mixtral(keys: Keys, file: GGUFFile, config: Config) -> Config:
    return _experts(keys, renormalised=True, named="num_local_experts")


def _qwen2_moe(keys: Keys, file: GGUFFile, config: Config) -> Config:
    width = _expert_width(keys, file)
    shared = keys.number("expert_shared_feed_forward_length", config["intermediate_size"])
    found = _experts(keys, renormalised=False)
    return found | {
        "norm_topk_prob": False,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": shared,
    }


def _qwen3_moe(keys: Keys, file: GGUFFile, config: Config) -> Config:
    found = _experts(keys, renormalised=True)
    return found | {"norm_topk_prob": True, "moe_intermediate_size": _expert_width(keys, file)}


def _olmoe(keys: Keys, file: GGUFFile, config: Config) -> Config:
    clip = keys.real("attention.clamp_kqv", 0.0) or None
    return _experts(keys, renormalised=False) | {"norm_topk_prob": False, "clip_qkv": clip}


def _gpt_oss(keys: Keys, file: GGUFFile, config: Config) -> Config:
    keys.only("rope.freq_base_swa", config["rope_theta"])
    keys.only("expert_feed_forward_length", config["intermediate_size"])
    scaling = config["rope_scaling"]
    found = _experts(keys, renormalised=True, named="num_local_experts")
    return found | {
        "sliding_window": keys.number("attention.sliding_window"),
        # a GGUF does not say that its bounds are not rounded, as they are in other models
        "rope_scaling": scaling and scaling | {"truncate": False},
    }


def _gemma2(keys: Keys, file: GGUFFile, config: Config) -> Config:
    keys.only("rope.freq_base_swa", config["rope_theta"])
    return {
        "query_pre_attn_scalar": _gemma_scalar(config, large=46),
        "sliding_window": keys.number("attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, file: GGUFFile, config: Config) -> Config:
    layers, window = config["num_hidden_layers"], None
    sliding = [False] * layers
    if keys.has("attention.sliding_window"):
        window = keys.number("attention.sliding_window")
        sliding = keys.flags("attention.sliding_window_pattern", layers, 6)
    return {
        "query_pre_attn_scalar": _gemma_scalar(config, large=62),
        "sliding_window": window,
        "layer_types": ["sliding_attention" if s else "full_attention" for s in sliding],
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 0.0) or None,
    }


def _gemma_scalar(config: Config, large: int) -> int:
    """What scores are divided by the root of: the models of 27B, by their layers, are apart."""
    if config["num_hidden_layers"] == large:
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def _phi3(keys: Keys, file: GGUFFile, config: Config) -> Config:
    window = "attention.sliding_window"
    original = keys.number(
        "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    return {
        "original_max_position_embeddings": original,
        "sliding_window": keys.number(window) if keys.has(window) else None,
    }


def _stablelm(keys: Keys, file: GGUFFile, config: Config) -> Config:
    one_norm = not has_tensor(file, "ffn_norm.weight")
    return {"use_parallel_residual": keys.flag("use_parallel_residual", one_norm)}


def _granite(keys: Keys, file: GGUFFile, config: Config) -> Config:
    keys.only("rope.scaling.finetuned", True)  # false would mean: no positions at all
    scale = keys.real("attention.scale", 0.0)
    return {
        "attention_multiplier": scale or config["head_dim"] ** -0.5,
        "embedding_multiplier": keys.real("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": keys.real("residual_scale", 0.0) or 1.0,
        "logits_scaling": keys.real("logit_scale", 0.0) or 1.0,
    }


def _granite_moe(keys: Keys, file: GGUFFile, config: Config) -> Config:
    found = _granite(keys, file, config)
    if keys.has("expert_shared_feed_forward_length"):
        shared = keys.number("expert_shared_feed_forward_length")
        found |= {"model_type": "granitemoeshared", "shared_intermediate_size": shared}
        found["architectures"] = ["GraniteMoeSharedForCausalLM"]
    return found | _experts(keys, renormalised=True, named="num_local_experts")


def _command_r(keys: Keys, file: GGUFFile, config: Config) -> Config:
    return {"logit_scale": keys.real("logit_scale", 0.0) or 1.0}


_ATTENTION_BIAS = {"attention_bias": "attn_q.bias"}
_BOTH_BIASES = {**_ATTENTION_BIAS, "mlp_bias": "ffn_up.bias"}
_MIXTRAL = Architecture(
    "mixtral",
    "MixtralForCausalLM",
    read=_mixtral,
    permuted=True,
    block=_BLOCK | {"ffn_gate_inp": "block_sparse_moe.gate"},
)
ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", switches=_BOTH_BIASES, permuted=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", switches=_ATTENTION_BIAS),
    "gemma": Architecture("gemma", "GemmaForCausalLM", plus_one=True),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        read=_gemma2,
        plus_one=True,
        block=_BLOCK | _SANDWICH,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        read=_gemma3,
        plus_one=True,
        block=_BLOCK | _SANDWICH,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        read=_phi3,
        partial=True,
        block=_BLOCK | _FUSED_MLP | {"attn_qkv": "self_attn.qkv_proj"},
    ),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        eps="norm_epsilon",
        switches={"use_bias": "attn_q.bias"},
        block=_BLOCK | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    "gpt2": Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        eps="layer_norm_epsilon",
        spelled={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
        turns=False,
        top=_GPT2_TOP,
        block=_GPT2_BLOCK,
        layers="model.h",
    ),
    "stablelm": Architecture(
        "stablelm",
        "StableLmForCausalLM",
        eps="layer_norm_eps",
        switches={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
        read=_stablelm,
        partial=True,
    ),
    "olmo2": Architecture(
        "olmo2", "Olmo2ForCausalLM", switches=_ATTENTION_BIAS, block=_BLOCK | _SANDWICH
    ),
    "granite": Architecture(
        "granite",
        "GraniteForCausalLM",
        switches=_BOTH_BIASES,
        read=_granite,
        permuted=True,
    ),
    "command-r": Architecture(
        "cohere",
        "CohereForCausalLM",
        eps="layer_norm_eps",
        switches={**_ATTENTION_BIAS, "use_qk_norm": "attn_q_norm.weight"},
        read=_command_r,
    ),
    "smollm3": Architecture(
        "smollm3",
        "SmolLM3ForCausalLM",
        switches=_BOTH_BIASES,
        fixed={"no_rope_layer_interval": 4},
        permuted=True,
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        switches=_ATTENTION_BIAS,
        partial=True,
        block=_BLOCK | _FUSED_MLP | _GLM4_NORMS,
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        switches={"qkv_bias": "attn_q.bias"},
        read=_qwen2_moe,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe", "Qwen3MoeForCausalLM", switches=_ATTENTION_BIAS, read=_qwen3_moe
    ),
    "olmoe": Architecture("olmoe", "OlmoeForCausalLM", switches=_ATTENTION_BIAS, read=_olmoe),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        switches=_ATTENTION_BIAS,
        read=_granite_moe,
        permuted=True,
        block=_BLOCK | {"ffn_gate_inp": "block_sparse_moe.router.layer"},
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        switches=_ATTENTION_BIAS,
        read=_gpt_oss,
        block=_BLOCK | _GPT_OSS,
    ),
}
