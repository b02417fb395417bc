"""The JSON files of an exported folder: what each consumer reads beside the graph.

onnxruntime-genai reads genai_config.json, transformers.js and optimum config.json, all of them the
tokenizer's files. Formats: onnxruntime-genai's `Config` (src/config.h) and transformers.js's
`transformers.js_config` (docs/source/guides/dtypes.md).
"""

import json
from pathlib import Path
from typing import Any

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.config import ModelConfig
from .readme import readme
from .settings import Settings

_SEARCH_LENGTH = 2048  # genai reserves the KV cache for this many tokens unless told otherwise


def write_sidecars(
    folder: Path, checkpoint: Checkpoint, config: ModelConfig, settings: Settings, data_files: int
) -> None:
    """Write all files of the folder but the graph; `data_files` is the number of its data files."""
    eos = _eos_ids(checkpoint)
    files = {
        "config.json": _config(checkpoint, config, settings, data_files),
        "generation_config.json": _generation_config(checkpoint, eos),
        "genai_config.json": _genai_config(checkpoint, config, settings, eos),
    }
    if checkpoint.tokenizer_json:
        files["tokenizer_config.json"] = _tokenizer_config(checkpoint, settings)
        _write(folder / "tokenizer.json", checkpoint.tokenizer_json)
    for name, content in files.items():
        _write(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    _write(folder / "README.md", readme(config, settings))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _config(
    checkpoint: Checkpoint, config: ModelConfig, settings: Settings, data_files: int
) -> dict[str, Any]:
    """The checkpoint's config.json, the sizes of the KV cache spelled out."""
    dropped = ("quantization", "quantization_config", "transformers.js_config")
    kept = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    return kept | {
        "head_dim": config.head_dim,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": settings.context,
        "transformers.js_config": {
            "dtype": settings.weights,
            "kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"},
            "use_external_data_format": {f"model{settings.suffix}.onnx": data_files},
        },
    }


def _generation_config(checkpoint: Checkpoint, eos: list[int]) -> dict[str, Any]:
    """With all ids that end a reply, since some consumers look nowhere else for them."""
    config = dict(checkpoint.generation_config)
    if not config:
        named = ("bos_token_id", "pad_token_id")
        config = {key: checkpoint.config[key] for key in named if key in checkpoint.config}
    return config | ({"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {})


def _tokenizer_config(checkpoint: Checkpoint, settings: Settings) -> dict[str, Any]:
    """Of the one class that needs tokenizer.json alone; the template as one string."""
    config = {key: v for key, v in checkpoint.tokenizer_config.items() if key != "auto_map"}
    config = {"model_max_length": settings.context} | config
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
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


def _eos_ids(checkpoint: Checkpoint) -> list[int]:
    """All ids that end a reply: what the files name, and the template's end of turn."""
    if checkpoint.tokenizer_json:
        return sorted(checkpoint.tokenizer().eos_token_ids)
    ids: set[int] = set()
    for config in (checkpoint.config, checkpoint.generation_config):
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(ids)
