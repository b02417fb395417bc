"""GGUF files of every architecture, made by llama.cpp's converter from tiny random checkpoints."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from .families import LEAST_MARGIN
from .llama_cpp import convert_to_gguf
from .tiny import Tiny, make_tiny

LENGTH = 50  # tokens: beyond each window, and beyond where longrope changes
_KINDS = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
# A tensor's name and values -> what is written, and in which type (None: as numpy has it).
Change = Callable[[str, np.ndarray], tuple[np.ndarray, GGMLQuantizationType | None]]
# Multiples of 32 everywhere, so that each matrix can be quantized.
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS: dict[str, Any] = {
    **SIZES,
    "moe_intermediate_size": 32,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
GRANITE: dict[str, Any] = {
    **SIZES,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
GRANITE_MOE = {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32,
    "partial_rotary_factor": 0.5,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
# By architecture and variant: the stem of transformers' class, and keys of its config.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama, mixtral": ("Mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", SIZES),
    "qwen2, yarn, tied": ("Qwen2", {**SIZES, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 32}),
    "gemma": ("Gemma", {**SIZES, "head_dim": 32}),
    "gemma2": (
        "Gemma2",
        {**SIZES, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16},
    ),
    "gemma3": (
        "Gemma3Text",
        {
            **SIZES,
            "head_dim": 32,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "phi3": ("Phi3", {**SIZES, "sliding_window": 16, "original_max_position_embeddings": 512}),
    "phi3, longrope": (
        "Phi3",
        {
            **SIZES,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 32,
            "sliding_window": None,
        },
    ),
    "starcoder2": ("Starcoder2", {**SIZES, "sliding_window": None, "norm_epsilon": 1e-4}),
    "starcoder2, no biases": ("Starcoder2", {**SIZES, "sliding_window": None, "use_bias": False}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 128}),
    "stablelm": ("StableLm", {**SIZES, "use_qkv_bias": True}),
    "stablelm, q/k-norm": ("StableLm", {**SIZES, "qk_layernorm": True}),
    "stablelm, parallel": ("StableLm", {**SIZES, "use_parallel_residual": True}),
    "olmo2": ("Olmo2", SIZES),
    "granite": ("Granite", GRANITE),
    "command-r": ("Cohere", SIZES),
    "command-r, q/k-norm": ("Cohere", {**SIZES, "use_qk_norm": True, "logit_scale": 0.25}),
    "smollm3": ("SmolLM3", {**SIZES, "num_hidden_layers": 5}),
    "glm4": ("Glm4", {**SIZES, "head_dim": 16}),
    "qwen2moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "olmoe": ("Olmoe", {**SIZES, "num_experts": 6, "num_experts_per_tok": 2}),
    "granitemoe": ("GraniteMoe", GRANITE_MOE),
    "granitemoe, shared": ("GraniteMoeShared", {**GRANITE_MOE, "shared_intermediate_size": 64}),
    "gpt-oss": (
        "GptOss",
        {
            **SIZES,
            "head_dim": 32,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
}
"""Left out of a GGUF by the converter: sliding windows of StarCoder2, Qwen2 and Mistral."""


@dataclass(frozen=True)
class Converted:
    """A checkpoint and the GGUF that llama.cpp's converter made of it."""

    tiny: Tiny
    path: Path

    @cached_property
    def ids(self) -> list[int]:
        """Tokens at which the choice among experts is not too narrow to compare."""
        for seed in range(20):
            ids = np.random.default_rng(seed).integers(0, 97, LENGTH).tolist()
            if self.tiny.routing_margin(ids) > LEAST_MARGIN:
                return ids
        raise AssertionError("no tokens are routed clearly")


def convert_all(folder: Path) -> dict[str, Converted]:
    """All CASES."""
    models = {
        name: make_tiny(folder / f"m{number}", kind, seed=number, **config)
        for number, (name, (kind, config)) in enumerate(CASES.items())
    }
    for model in models.values():
        _prepare(model)
    paths = convert_to_gguf([model.path for model in models.values()], "f32")
    files = dict(zip(models, map(Converted, models.values(), paths), strict=True))
    norms = files["stablelm, q/k-norm"]
    files["stablelm, q/k-norm"] = Converted(norms.tiny, _add_head_norms(norms))
    return files


def _prepare(model: Tiny) -> None:
    """Let the converter take the checkpoint: what it asks for beside the weights, and no more."""
    vocabulary = {f"t{index}": index for index in range(97)}
    document = {"model": {"vocab": vocabulary}, "added_tokens": []}
    (model.path / "tokenizer.json").write_text(json.dumps(document))
    config = json.loads((model.path / "config.json").read_text())
    if config["model_type"] == "gpt2":
        config["n_ctx"] = config["n_positions"]
    if config.get("qk_layernorm"):  # the converter stumbles over these: see _add_head_norms
        config["qk_layernorm"] = False
        weights = mx.load(str(model.path / "model.safetensors"))
        kept = {name: array for name, array in weights.items() if "_layernorm.norms" not in name}
        mx.save_safetensors(str(model.path / "model.safetensors"), kept, {"format": "pt"})
    (model.path / "config.json").write_text(json.dumps(config))


def _add_head_norms(model: Converted) -> Path:
    """StableLM's norms of heads, stacked, as its architecture has them in a GGUF."""
    state = {name: p.detach().numpy() for name, p in model.tiny.reference.named_parameters()}
    norms = {}
    for part, heads in (("q", 4), ("k", 2)):
        for layer in range(3):
            stem = f"model.layers.{layer}.self_attn.{part}_layernorm.norms"
            rows = [state[f"{stem}.{head}.weight"] for head in range(heads)]
            norms[f"blk.{layer}.attn_{part}_norm.weight"] = np.stack(rows)
    return rewrite(model.path, model.path.with_suffix(".norms.gguf"), added=norms)


def rewrite(
    source: Path,
    target: Path,
    change: Change | None = None,
    *,
    added: dict[str, np.ndarray] | None = None,
    keys: dict[str, Any] | None = None,
    dropped: tuple[str, ...] = (),
) -> Path:
    """Copy a GGUF in float32: tensors changed, added or dropped, keys set or (None) dropped."""
    reader, keys = GGUFReader(source), keys or {}
    kept = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    writer = GGUFWriter(target, kept.pop("general.architecture").contents())
    for name, entry in kept.items():
        if name not in keys:
            sub_type = entry.types[-1]
            writer.add_key_value(name, entry.contents(), entry.types[0], sub_type=sub_type)
    for name, value in keys.items():
        if value is None:
            continue
        kind = _KINDS[type(value)]
        getattr(writer, f"add_{kind}")(name, value)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors} | (added or {})
    for name, values in tensors.items():
        if name not in dropped:
            values, kind = change(name, values) if change else (values, None)
            writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
