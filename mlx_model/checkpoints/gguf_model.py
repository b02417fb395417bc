"""What a GGUF says, in the terms of a Hugging Face checkpoint.

The key and tensor names are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md;
a key of the architecture that is not named here is refused unless it says "off".
"""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.errors import InputError
from .gguf import GGUFFile, GGUFTensor
from .gguf_architectures import Architecture, architecture, has_tensor
from .gguf_keys import Keys, shortest
from .gguf_rope import read_rope_scaling
from .gguf_tensors import load_tensor

if TYPE_CHECKING:
    import mlx.core as mx

# Tensors that say what the config says.
_DERIVED = ("rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd")
_SAMPLING = {  # under general.sampling.
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_STOP_TOKENS = ("eos", "eot", "eom")


def read_config(file: GGUFFile) -> dict[str, Any]:
    """The config.json that stands for a GGUF's metadata.

    Raises InputError, by name, for an architecture that is not implemented and for whatever
    changes the output and is not implemented.
    """
    _refuse_other_kinds(file)
    kind, keys = architecture(file), Keys(file)
    config = _read_sizes(file, keys)
    eps = "layer_norm_rms_epsilon" if kind.eps == "rms_norm_eps" else "layer_norm_epsilon"
    config[kind.eps] = keys.real(f"attention.{eps}")
    if kind.turns:
        config |= _read_rope(file, keys, kind, config)
    config |= {switch: has_tensor(file, name) for switch, name in kind.switches.items()}
    config |= kind.fixed
    for name in ("bos", "eos"):
        if (token := file.metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name}_token_id"] = token
    config |= {"model_type": kind.model_type, "architectures": [kind.model_class]}
    if kind.read:
        config |= kind.read(keys, file, config)
    keys.finish()
    return {kind.spelled.get(key, key): value for key, value in config.items()}


def _read_sizes(file: GGUFFile, keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.number("embedding_length"), keys.number("attention.head_count")
    head_dim = keys.number("attention.key_length", hidden // heads)
    keys.only("attention.value_length", head_dim)
    keys.only("attention.causal", True)
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise InputError(f"{file.path} has no tensor 'token_embd.weight'; it is incomplete")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.number("feed_forward_length"),
        "max_position_embeddings": keys.number("context_length"),
        "vocab_size": keys.number("vocab_size", table.shape[0]),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _read_rope(
    file: GGUFFile, keys: Keys, kind: Architecture, config: dict[str, Any]
) -> dict[str, Any]:
    head_dim, partial = config["head_dim"], {}
    if kind.partial:
        partial["partial_rotary_factor"] = keys.number("rope.dimension_count", head_dim) / head_dim
    else:
        keys.only("rope.dimension_count", head_dim)
    return partial | {
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "rope_scaling": read_rope_scaling(file, keys, config["max_position_embeddings"]),
    }


def read_generation_config(file: GGUFFile) -> dict[str, Any]:
    """The generation_config.json that stands for a GGUF's metadata."""
    tokens = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _STOP_TOKENS]
    config: dict[str, Any] = {}
    if stops := sorted({token for token in tokens if isinstance(token, int)}):
        config["eos_token_id"] = stops
    for ours, theirs in _SAMPLING.items():
        if (value := file.metadata.get(f"general.sampling.{ours}")) is not None:
            config[theirs] = shortest(value)
    return config


def load_weights(file: GGUFFile) -> dict[str, "mx.array"]:
    """All tensors under their Hugging Face names.

    What llama.cpp's converter did to them is undone: the row order of q and k, the 1 that is
    added to the weights of Gemma's norms.
    """
    kind, keys = architecture(file), Keys(file)
    heads = {"attn_q": keys.number("attention.head_count")}
    heads["attn_k"] = keys.number("attention.head_count_kv", heads["attn_q"])
    known = _tensors_of(file)
    weights = {}
    for tensor in file.tensors.values():
        number, stem, leaf = _split_name(tensor.name)
        if stem in _DERIVED and stem in known:
            continue
        module = _module(kind, number, stem) if stem in known else None
        if module is None or leaf not in {"weight", "bias"}:
            raise InputError(
                f"{file.path} has the tensor {tensor.name!r}, which is not implemented"
            )
        order = None
        if kind.permuted and stem in heads:
            order = _row_order(file, tensor, heads[stem])
        is_norm = stem.endswith("norm")
        loaded = load_tensor(file, tensor, order, packed=leaf == "weight" and not is_norm)
        if is_norm and kind.plus_one:
            loaded = {"weight": _less_one(loaded["weight"])}
        if stem == "ffn_gate_inp_shexp":  # one row, which some files store as a vector
            loaded = {name: array.reshape(1, -1) for name, array in loaded.items()}
        for name, array in loaded.items():
            weights[_leaf(module, leaf if name == "weight" else name)] = array
    return weights


def _tensors_of(file: GGUFFile) -> set[str]:
    """The stems of the tensors that the architecture has, by the `gguf` library's list."""
    from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

    names = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    listed = MODEL_TENSORS[names[file.metadata["general.architecture"]]]
    return {TENSOR_NAMES[tensor].removeprefix("blk.{bid}.") for tensor in listed}


def _split_name(name: str) -> tuple[str | None, str, str]:
    """blk.3.attn_q.weight → 3, attn_q, weight."""
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
    return (block[1], block[2], leaf) if block else (None, stem, leaf)


def _module(kind: Architecture, number: str | None, stem: str) -> str | None:
    if number is None:
        return kind.top.get(stem)
    return f"{kind.layers}.{number}.{kind.block[stem]}" if stem in kind.block else None


def _leaf(module: str, leaf: str) -> str:
    """Sinks are a parameter by themselves in Hugging Face's checkpoints."""
    return module if module.endswith(".sinks") else f"{module}.{leaf}"


def _less_one(weight: "mx.array") -> "mx.array":
    import mlx.core as mx

    return weight.astype(mx.float32) - 1


def _row_order(file: GGUFFile, tensor: GGUFTensor, heads: int) -> np.ndarray:
    """Rows of a q or k projection in Hugging Face's order: in each head, evens before odds.

    llama.cpp rotates neighbouring pairs of a head, Hugging Face pairs half a head apart; its
    converter reorders the rows, and the bias, to fit.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise InputError(
            f"{file.path} has {rows} rows in {tensor.name!r}, expected a multiple of 2 × {heads}"
        )
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _refuse_other_kinds(file: GGUFFile) -> None:
    metadata = file.metadata
    if (kind := metadata.get("general.type", "model")) != "model":
        raise InputError(f"{file.path} holds a GGUF {kind!r}, expected a model")
    architecture(file)
    if (parts := metadata.get("split.count", 1)) != 1:
        raise InputError(
            f"{file.path} is one of {parts} parts; join them with `llama-gguf-split --merge`"
        )
    if not file.tensors:
        raise InputError(f"{file.path} has a vocabulary but no weights")
