"""One folder of each foreign layout, of tiny random checkpoints, made once a session."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import foreign_exports
from .byte_tokenizer import IM_END, write_tokenizer
from .tiny import Tiny, make_tiny

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 288,
    "eos_token_id": IM_END,
}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 288, "eos_token_id": IM_END}
_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "Llama": _SIZES,
    "Qwen3": _SIZES | {"head_dim": 16},
    "GPT2": _GPT2,
    "tied": _SIZES | {"kind": "Llama", "tie_word_embeddings": True},
    "wide heads": _SIZES | {"kind": "Llama", "head_dim": 32},
}


@dataclass(frozen=True)
class Foreign:
    """A folder, the checkpoint that it was made of, and how close it must come to it."""

    path: Path
    tiny: Tiny
    tolerance: float | None = 1e-4  # of the largest logit; None: it is quantized


Maker = Callable[[Path], Foreign]


@functools.cache
def _top() -> Path:
    top = tempfile.mkdtemp(prefix="pippin-foreign-")
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    return Path(top)


@functools.cache
def checkpoint(name: str) -> Tiny:
    """A random checkpoint with a byte tokenizer and a chat template."""
    settings = {"kind": name} | _CHECKPOINTS[name]
    tiny = make_tiny(_top() / name, **settings)
    write_tokenizer(tiny.path)
    return tiny


@functools.cache
def foreign(kind: str) -> Foreign:
    """A folder by its name in KINDS."""
    return KINDS[kind](_top() / kind)


def _genai(name: str, tolerance: float | None = 1e-4, **options: Any) -> Maker:
    def make(out: Path) -> Foreign:
        tiny = checkpoint(name)
        return Foreign(foreign_exports.genai_folder(tiny.path, out, **options), tiny, tolerance)

    return make


def _optimum(name: str) -> Maker:
    def make(out: Path) -> Foreign:
        tiny = checkpoint(name)
        return Foreign(foreign_exports.optimum_folder(tiny.path, out), tiny)

    return make


def _merged(out: Path) -> Foreign:
    plain = foreign("optimum")
    return Foreign(foreign_exports.merged_folder(plain.tiny.path, plain.path, out), plain.tiny)


def _quantized(out: Path) -> Foreign:
    plain = foreign("optimum")
    return Foreign(foreign_exports.quantized_folder(plain.path, out), plain.tiny, None)


KINDS = {
    "genai": _genai("Llama"),
    "genai-fp16": _genai("Llama", 2e-2, precision="fp16", provider="cuda"),
    "genai-one-row": _genai("Llama", prune_lm_head="true"),
    "genai-hidden-states": _genai("Llama", include_hidden_states="true"),
    "genai-no-ids": _genai("Llama", exclude_embeds="true"),
    "genai-qwen3": _genai("Qwen3"),
    "genai-int4": _genai("tied", None, precision="int4"),
    "genai-int8": _genai("Llama", None, precision="int8"),
    "optimum": _optimum("Llama"),
    "optimum-gpt2": _optimum("GPT2"),
    "optimum-merged": _merged,
    "optimum-int8": _quantized,
}
