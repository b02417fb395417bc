"""How folders of decoder graphs are laid out: where the graph is, and what its tensors are called.

`pippin export` and transformers.js: config.json and `onnx/model{suffix}.onnx`, beside which
`onnx/model{suffix}_kv8.onnx` is the same on the same data files with an int8 KV cache; older
folders for transformers.js: `onnx/decoder_model_merged{suffix}.onnx`. optimum: config.json and the
same names without `onnx/`. onnxruntime-genai's model builder: genai_config.json, which names the
graph and its tensors and stands for config.json.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .errors import InputError

# transformers.js's names of data types, by what ends the file's name. In the order of preference:
# what a CPU runs fastest first. It computes half precision by converting to and fro.
SUFFIXES = {
    "q4": "_q4",
    "int8": "_int8",
    "q8": "_quantized",
    "uint8": "_uint8",
    "fp32": "",
    "fp16": "_fp16",
    "q4f16": "_q4f16",
    "bnb4": "_bnb4",
}
_STEMS = ("model", "decoder_model_merged")
_INT8_CACHE = "_kv8"
# Where config.json's keys stand in genai_config.json's "model", and in its "decoder".
_GENAI_MODEL = {"vocab_size": "vocab_size", "max_position_embeddings": "context_length"}
_GENAI_DECODER = {
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_hidden_layers",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_size",
}


@dataclass(frozen=True)
class TensorNames:
    """What a graph calls its inputs and outputs; %d stands for the layer."""

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"
    logits: str = "logits"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"


@dataclass(frozen=True)
class Layout:
    """What a folder says before its graph is opened."""

    graphs: dict[str, Path]  # by weights: a key of SUFFIXES in onnx/, elsewhere the file's stem
    config: dict[str, Any]  # config.json; what it leaves out is genai_config.json's
    config_file: str  # the one of the two that it was read from
    names: TensorNames


def read_layout(path: Path) -> Layout:
    """Look into a folder; graphs in the order of preference.

    Raises InputError when it is no folder, has no graph of a decoder or no readable config.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a directory; give a folder that `pippin export` wrote")
    config, genai = (_read_object(path / f"{name}.json") for name in ("config", "genai_config"))
    model = _section(genai or {}, "model")
    decoder = _section(model, "decoder")
    if config is None and genai is None:
        raise InputError(f"{path} holds no config.json; give a folder that `pippin export` wrote")
    graphs = _find_graphs(path, decoder.get("filename"))
    return Layout(
        graphs=graphs,
        config=_genai_as_config(model, decoder) | (config or {}),
        config_file="genai_config.json" if config is None else "config.json",
        names=_names(decoder),
    )


def int8_cache_path(graph: Path) -> Path:
    """Where the graph stands that is `graph` with an int8 KV cache, if there is one."""
    return graph.with_name(f"{graph.stem}{_INT8_CACHE}{graph.suffix}")


def has_graph(path: Path) -> bool:
    """Whether a folder holds a decoder's graph, by its files' names."""
    try:
        return bool(read_layout(path).graphs)
    except InputError:
        return False


def kv_heads(config: dict[str, Any]) -> int | None:
    """K as a config says it, in the spelling of any family; None when it does not."""
    return _number(config, "num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head")


def head_dim(config: dict[str, Any]) -> int | None:
    """D as a config says it, in the spelling of any family; None when it does not."""
    hidden = _number(config, "hidden_size", "n_embd")
    heads = _number(config, "num_attention_heads", "n_head")
    return _number(config, "head_dim") or (hidden // heads if hidden and heads else None)


def context_length(config: dict[str, Any]) -> int | None:
    """The most tokens of a sequence as a config says it; None when it does not."""
    keys = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")
    return _number(config, *keys)


def _number(config: dict[str, Any], *keys: str) -> int | None:
    """The first of `keys` that is a positive integer."""
    values = (config.get(key) for key in keys)
    return next((v for v in values if isinstance(v, int) and v > 0), None)


def _find_graphs(path: Path, named: Any) -> dict[str, Path]:
    """Graphs by weights; `named` is the file that genai_config.json names."""
    found: dict[str, Path] = {}
    for stem in _STEMS:
        for weights, suffix in SUFFIXES.items():
            file = path / "onnx" / f"{stem}{suffix}.onnx"
            if file.is_file():
                found.setdefault(weights, file)
    files = [path / named] if isinstance(named, str) and named else []
    files += [path / f"{stem}{suffix}.onnx" for stem in _STEMS for suffix in SUFFIXES.values()]
    for file in files:
        if file.is_file() and file not in found.values():
            found.setdefault(file.stem, file)
    return found


def _names(decoder: dict[str, Any]) -> TensorNames:
    """Those that genai_config.json gives, the usual ones for the rest."""
    stated = _section(decoder, "inputs") | _section(decoder, "outputs")
    known = {field.name for field in fields(TensorNames)}
    return TensorNames(**{k: v for k, v in stated.items() if k in known and isinstance(v, str)})


def _genai_as_config(model: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    pairs = [(key, model.get(name)) for key, name in _GENAI_MODEL.items()]
    pairs += [(key, decoder.get(name)) for key, name in _GENAI_DECODER.items()]
    return {key: value for key, value in pairs if value is not None}


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object; None when there is no such file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); export the model again") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is not a JSON object; export the model again")
    return content
