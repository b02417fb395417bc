"""What a llama-architecture GGUF says, in the terms of a Hugging Face checkpoint.

The key and tensor names are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md;
a `llama.` key that is not named here is refused unless it says "off".
"""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.errors import InputError
from .gguf import GGUFFile, GGUFTensor
from .gguf_tensors import load_tensor

if TYPE_CHECKING:
    import mlx.core as mx

_ROPE_FACTORS = "rope_freqs.weight"
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
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

    Raises InputError, by name, for another architecture and for whatever changes the output and
    is not implemented.
    """
    _refuse_other_kinds(file)
    keys = _Keys(file)
    hidden, heads = keys.number("embedding_length"), keys.number("attention.head_count")
    head_dim = keys.number("attention.key_length", hidden // heads)
    keys.only("attention.value_length", head_dim)
    keys.only("rope.dimension_count", head_dim)
    keys.only("attention.causal", True)
    context = keys.number("context_length")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": keys.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.number("feed_forward_length"),
        "max_position_embeddings": context,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, keys, context),
        "vocab_size": _vocab_size(file, keys),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
        "mlp_bias": any(name.endswith("ffn_up.bias") for name in file.tensors),
    }
    for name in ("bos", "eos"):
        if (token := file.metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name}_token_id"] = token
    keys.finish()
    return config


def read_generation_config(file: GGUFFile) -> dict[str, Any]:
    """The generation_config.json that stands for a GGUF's metadata."""
    tokens = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _STOP_TOKENS]
    config: dict[str, Any] = {}
    if stops := sorted({token for token in tokens if isinstance(token, int)}):
        config["eos_token_id"] = stops
    for ours, theirs in _SAMPLING.items():
        if (value := file.metadata.get(f"general.sampling.{ours}")) is not None:
            config[theirs] = _shortest(value)
    return config


def load_weights(file: GGUFFile) -> dict[str, "mx.array"]:
    """All tensors under their Hugging Face names; llama.cpp's row order of q and k undone."""
    keys = _Keys(file)
    heads = keys.number("attention.head_count")
    kv_heads = keys.number("attention.head_count_kv", heads)
    weights = {}
    for tensor in file.tensors.values():
        if (target := _target(file, tensor.name)) is None:
            continue
        module, _, leaf = target.rpartition(".")
        order = None
        if module.endswith(("q_proj", "k_proj")):
            order = _row_order(file, tensor, heads if module.endswith("q_proj") else kv_heads)
        for name, array in load_tensor(file, tensor, order).items():
            weights[f"{module}.{leaf if name == 'weight' else name}"] = array
    return weights


def _target(file: GGUFFile, name: str) -> str | None:
    """The Hugging Face name of a tensor; None when the config says what it says."""
    if name == _ROPE_FACTORS or name.endswith(".attn_rot_embd.weight"):
        return None
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if leaf in {"weight", "bias"}:
        if block and block[2] in _BLOCK:
            return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{leaf}"
        if stem in _TOP:
            return f"{_TOP[stem]}.{leaf}"
    raise InputError(f"{file.path} has the tensor {name!r}, which is not implemented")


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
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise InputError(
            f"{file.path} has the GGUF architecture {architecture!r}; Pippin reads 'llama' "
            "(other models: give their safetensors directory)"
        )
    if (parts := metadata.get("split.count", 1)) != 1:
        raise InputError(
            f"{file.path} is one of {parts} parts; join them with `llama-gguf-split --merge`"
        )
    if not file.tensors:
        raise InputError(f"{file.path} has a vocabulary but no weights")


def _rope_scaling(file: GGUFFile, keys: "_Keys", context: int) -> dict[str, Any] | None:
    factor = keys.real("rope.scaling.factor", 0.0) or keys.real("rope.scale_linear", 0.0) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    original = keys.number("rope.scaling.original_context_length", context)
    keys.only("rope.scaling.attn_factor", 1.0)
    factors = file.tensors.get(_ROPE_FACTORS)
    scaled = kind != "none" and factor != 1.0
    if factors is not None:
        if scaled:
            raise InputError(f"{file.path} has {kind} RoPE scaling and {_ROPE_FACTORS} at once")
        if factors.type != "F32":
            raise InputError(f"{file.path} has {_ROPE_FACTORS} in {factors.type}, expected F32")
        values = file.raw(factors).view(np.float32).ravel()
        return {"rope_type": "custom", "factors": values.tolist()}
    if not scaled:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for ours, theirs in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if beta := keys.real(f"rope.scaling.{ours}", 0.0):
                scaling[theirs] = beta
    return scaling


def _vocab_size(file: GGUFFile, keys: "_Keys") -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise InputError(f"{file.path} has no tensor 'token_embd.weight'; it is incomplete")
    return keys.number("vocab_size", table.shape[0])


def _shortest(value: Any) -> Any:
    """A float32 that the file holds, as the float with the fewest digits that rounds to it.

    1e-05 in config.json is 9.999999747378752e-06 after float32; this gives 1e-05 back.
    """
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


class _Keys:
    """The `llama.` keys, taken one by one; `finish` refuses what was not taken."""

    def __init__(self, file: GGUFFile) -> None:
        self._path = file.path
        self._left = {k: v for k, v in file.metadata.items() if k.startswith("llama.")}
        for harmless in ("rope.scaling.finetuned", "tensor_data_layout"):
            self._left.pop(f"llama.{harmless}", None)

    def _take(self, key: str, kind: type, default: Any) -> Any:
        value = self._left.pop(f"llama.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one value a layer, all the same
        if value is None:
            raise InputError(f"{self._path} lacks the key 'llama.{key}'; it is incomplete")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"{self._path} has llama.{key} = {value!r:.60}, expected one {kind.__name__}"
            )
        return value

    def number(self, key: str, default: int | None = None) -> int:
        value = self._take(key, int, default)
        if value < 1:
            raise InputError(f"{self._path} has llama.{key} = {value}, expected at least 1")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        return _shortest(self._take(key, float, default))

    def text(self, key: str, default: str) -> str:
        return self._take(key, str, default)

    def only(self, key: str, allowed: Any) -> None:
        """Refuse any other value of `key`: it would change the output."""
        value = self._left.pop(f"llama.{key}", allowed)
        if value != allowed:
            raise InputError(
                f"{self._path} has llama.{key} = {value!r:.60}; only {allowed!r} is implemented"
            )

    def finish(self) -> None:
        left = sorted(key for key, value in self._left.items() if value)
        if left:
            raise InputError(f"{self._path} has {', '.join(left)}, which is not implemented")
