"""The JSON files of an exported folder: what each consumer reads beside the graph.

onnxruntime-genai reads genai_config.json, transformers.js and optimum config.json, all of them the
tokenizer's files. Formats: onnxruntime-genai's `Config` (src/config.h) and transformers.js's
`transformers.js_config` (docs/source/guides/dtypes.md).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.config import ModelConfig
from ..runtime.layouts import int8_cache_path
from .readme import readme
from .settings import Settings, WrittenGraph

_SEARCH_LENGTH = 2048  # genai reserves the KV cache for this many tokens unless told otherwise


def write_sidecars(
    folder: Path, checkpoint: Checkpoint, config: ModelConfig, graphs: Sequence[WrittenGraph]
) -> None:
    """Write all files of the folder but the graphs; genai_config.json is for the first of them."""
    settings = graphs[0].settings
    checkpoint = replace(checkpoint, config=_decoder_config(checkpoint.config))
    eos = eos_ids(checkpoint)
    files = {
        "config.json": _config(checkpoint, config, graphs),
        "generation_config.json": generation_config(checkpoint, eos),
        "genai_config.json": _genai_config(checkpoint, config, settings, eos),
    }
    if checkpoint.tokenizer_json:
        files["tokenizer_config.json"] = tokenizer_config(checkpoint, settings.context)
        write_text(folder / "tokenizer.json", checkpoint.tokenizer_json)
    for name, content in files.items():
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    twice = [g for g in graphs if int8_cache_path(folder / "onnx" / g.name).is_file()]
    text = readme(config, graphs, twice, eos, bool(checkpoint.tokenizer_json))
    write_text(folder / "README.md", text)


def _decoder_config(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, or what it says of the decoder where that is one part of several (Gemma 3)."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    parts = ("text_config", "vision_config", "architectures")
    return {key: value for key, value in config.items() if key not in parts} | text


def write_text(path: Path, text: str) -> None:
    """The text as UTF-8, its lines ended alike everywhere."""
    path.write_text(text, encoding="utf-8", newline="\n")


def _config(
    checkpoint: Checkpoint, config: ModelConfig, graphs: Sequence[WrittenGraph]
) -> dict[str, Any]:
    """The checkpoint's config.json, the sizes of the KV cache spelled out."""
    dropped = ("quantization", "quantization_config", "transformers.js_config")
    kept = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    return kept | {
        "vocab_size": config.vocab_size,
        "head_dim": config.head_dim,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": graphs[0].settings.context,
        "transformers.js_config": {
            "dtype": graphs[0].settings.weights,
            "kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"},
            "use_external_data_format": {graph.name: graph.data_files for graph in graphs},
        },
    }


def generation_config(checkpoint: Checkpoint, eos: list[int]) -> dict[str, Any]:
    """With all ids that end a reply, since some consumers look nowhere else for them."""
    config = dict(checkpoint.generation_config)
    if not config:
        named = ("bos_token_id", "pad_token_id")
        config = {key: checkpoint.config[key] for key in named if key in checkpoint.config}
    return config | ({"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {})


def tokenizer_config(checkpoint: Checkpoint, context: int) -> dict[str, Any]:
    """Of the one class that needs tokenizer.json alone; the template as one string."""
    config = {key: v for key, v in checkpoint.tokenizer_config.items() if key != "auto_map"}
    config = {"model_max_length": context} | config
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["model_input_names"] = ["input_ids", "attention_mask"]  # no token types: optimum fails
    template = config.pop("chat_template", None)
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return config | ({"chat_template": template} if template else {})


def _genai_config(
    checkpoint: Checkpoint, config: ModelConfig, settings: Settings, eos: list[int]
) -> dict[str, Any]:
    """onnxruntime-genai refuses unknown nested keys and nulls."""
    ids = {
        key: value
        for key in ("bos_token_id", "pad_token_id")
        if isinstance(value := checkpoint.config.get(key), int)
    }
    if eos:
        ids["eos_token_id"] = eos[0] if len(eos) == 1 else eos
    decoder = {
        "session_options": {"provider_options": []},
        "filename": f"onnx/model{settings.suffix}.onnx",
        "head_size": config.head_dim,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": "decoder",
            **ids,
            "context_length": settings.context,
            "vocab_size": config.vocab_size,
            "decoder": decoder,
        },
        "search": {
            "do_sample": False,
            "max_length": min(_SEARCH_LENGTH, settings.context),
            "min_length": 0,
            "num_beams": 1,
            "past_present_share_buffer": settings.dialect == "gqa",
        },
    }


def eos_ids(checkpoint: Checkpoint) -> list[int]:
    """All ids that end a reply: what the files name, and the template's end of turn."""
    if checkpoint.tokenizer_json:
        return sorted(checkpoint.tokenizer().eos_token_ids)
    ids: set[int] = set()
    for config in (checkpoint.config, checkpoint.generation_config):
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(ids)
