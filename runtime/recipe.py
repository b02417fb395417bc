"""How a text becomes one vector: what sentence-transformers' files say beside an encoder.

`modules.json` lists an encoder, then Pooling, then Normalize where vectors have length 1;
`sentence_bert_config.json`, `1_Pooling/config.json` and `config_sentence_transformers.json` have
their settings. A directory without modules.json is an encoder alone: its vectors are averaged, as
sentence-transformers does.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .errors import InputError

Array = Any  # of numpy or mlx.core

MODULES, POOLING = "modules.json", "1_Pooling"
ENCODER_SETTINGS = "sentence_bert_config.json"
SENTENCE_SETTINGS = "config_sentence_transformers.json"
# Ways of pooling and their keys, in the order in which several are put side by side.
_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}
_PREFIX = "sentence_transformers."
_ALIASES = {"mean_sqrt_len_tokens": "mean_sqrt_len"}  # of version 6, whose keys are otherwise
# What version 6 says of an encoder that gives vectors of tokens.
_ENCODER_VALUES = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_ENCODER_KEYS = ("max_seq_length", "do_lower_case")
_NO_END = 10**9  # transformers writes 1e30 for a tokenizer without an end
_SIMILARITIES = ("cosine", "dot")


@dataclass(frozen=True)
class Recipe:
    """What is done to a text before the encoder, and to its tokens' vectors after it."""

    pooling: tuple[str, ...] = ("mean",)  # of _MODES; several stand side by side
    normalize: bool = False  # vectors are divided by their length
    max_length: int | None = None  # tokens of a text, further ones are cut; None: the encoder's
    cut_side: str = "right"  # where they are cut: "right" or "left"
    lower_case: bool = False
    prompt: str = ""  # stands before each text
    similarity: str = "cosine"  # what two vectors are compared by: "cosine" or "dot"

    def prepare(self, text: str) -> str:
        """The text as the tokenizer gets it."""
        text = (self.prompt + text).strip()
        return text.lower() if self.lower_case else text

    def pool(self, xp: ModuleType, hidden: Array, mask: Array) -> Array:
        """hidden [B, L, E] and mask [B, L], 1 for tokens → vectors [B, E · ways of pooling].

        `xp` is numpy or mlx.core; float32.
        """
        seen = mask[..., None]
        counts = xp.maximum(mask.sum(axis=1, keepdims=True), 1).astype(hidden.dtype)  # [B, 1]
        parts = []
        for way in self.pooling:
            if way == "cls":
                part = hidden[:, 0]
            elif way == "max":
                part = xp.where(seen > 0, hidden, -xp.inf).max(axis=1)
            else:
                total = (hidden * seen.astype(hidden.dtype)).sum(axis=1)
                part = total / (counts if way == "mean" else xp.sqrt(counts))
            parts.append(part)
        vectors = xp.concatenate(parts, axis=-1)
        if not self.normalize:
            return vectors
        length = xp.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))
        return vectors / xp.maximum(length, 1e-12)

    def compare(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Vectors [A, E] against [B, E] → [A, B], by the recipe's measure."""
        sides = [np.asarray(side, np.float32) for side in (left, right)]
        if self.similarity == "cosine":
            sides = [x / np.linalg.norm(x, axis=-1, keepdims=True).clip(1e-12) for x in sides]
        return sides[0] @ sides[1].T

    def files(self, dimension: int, context: int) -> dict[str, dict[str, Any] | list[Any]]:
        """The files that say this, by name; `dimension` is E, `context` the encoder's tokens."""
        names = ["Transformer", "Pooling", *(["Normalize"] if self.normalize else [])]
        paths = ["", POOLING, "2_Normalize"]
        modules = [
            {"idx": i, "name": str(i), "path": paths[i], "type": f"{_PREFIX}models.{name}"}
            for i, name in enumerate(names)
        ]
        pooling = {"word_embedding_dimension": dimension}
        pooling |= {key: way in self.pooling for way, key in _MODES.items()}
        return {
            MODULES: modules,
            f"{POOLING}/config.json": pooling,
            ENCODER_SETTINGS: {
                "max_seq_length": min(self.max_length or context, context),
                "do_lower_case": self.lower_case,
            },
            SENTENCE_SETTINGS: {
                "prompts": {"default": self.prompt} if self.prompt else {},
                "default_prompt_name": "default" if self.prompt else None,
                "similarity_fn_name": self.similarity,
            },
        }


def read_recipe(folder: Path) -> Recipe:
    """What a model's directory says. Raises InputError for what is not implemented, by name."""
    settings = _read(folder / SENTENCE_SETTINGS, {})
    prompt = _prompt(settings)
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise InputError(
            f"{SENTENCE_SETTINGS} has similarity_fn_name = {similarity!r}; Pippin implements "
            f"{', '.join(_SIMILARITIES)}"
        )
    longest, side = _tokenizer_limits(folder)
    common = {"prompt": prompt, "similarity": similarity, "cut_side": side}
    modules = _read(folder / MODULES, None)
    if modules is None:
        return Recipe(max_length=longest, **common)
    kinds = _module_kinds(modules)
    encoder = _read(folder / modules[0].get("path", "") / ENCODER_SETTINGS, {})
    for key in sorted(encoder.keys() - set(_ENCODER_KEYS)):
        if encoder[key] and encoder[key] != _ENCODER_VALUES.get(key):
            raise InputError(
                f"{ENCODER_SETTINGS} has {key} = {encoder[key]!r:.60}, which Pippin does not "
                "implement"
            )
    return Recipe(
        pooling=_pooling(folder / modules[1].get("path", POOLING) / "config.json", bool(prompt)),
        normalize="Normalize" in kinds,
        max_length=encoder.get("max_seq_length") or longest,
        lower_case=bool(encoder.get("do_lower_case")),
        **common,
    )


def _module_kinds(modules: Any) -> list[str]:
    """The classes' names. Raises InputError unless they are the ones that are implemented."""
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise InputError(f"{MODULES} holds no list of modules; the checkpoint is incomplete")
    types = [str(module.get("type")) for module in modules]
    kinds = [name.rpartition(".")[2] if name.startswith(_PREFIX) else name for name in types]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(
            f"{MODULES} lists {', '.join(kinds)}; Pippin implements Transformer, Pooling and, "
            "after them, Normalize"
        )
    return kinds


def _pooling(path: Path, prompted: bool) -> tuple[str, ...]:
    settings = _read(path, None)
    if settings is None:
        raise InputError(f"{path} is missing; the checkpoint is incomplete: fetch it too")
    settings = dict(settings)
    settings.pop("word_embedding_dimension", None)
    settings.pop("embedding_dimension", None)
    if not settings.pop("include_prompt", True) and prompted:
        raise InputError(f"{path} leaves the prompt out of the mean, which is not implemented")
    named = settings.pop("pooling_mode", None)
    ways = [way for way, key in _MODES.items() if settings.pop(key, False)]
    if named is not None:
        named = named if isinstance(named, list) else [named]
        ways = [_ALIASES.get(way, way) for way in named]
    others = [key for key, value in settings.items() if value]
    others += [repr(way) for way in ways if way not in _MODES]
    if others:
        raise InputError(
            f"{path} has {', '.join(sorted(others))}; Pippin implements {', '.join(_MODES)}"
        )
    return tuple(ways) or ("mean",)


def _tokenizer_limits(folder: Path) -> tuple[int | None, str]:
    """The longest text that the tokenizer's settings allow, tokens, and where it is cut.

    None where they set no end.
    """
    settings = _read(folder / "tokenizer_config.json", {})
    length, side = settings.get("model_max_length"), settings.get("truncation_side", "right")
    if side not in ("right", "left"):
        raise InputError(f"tokenizer_config.json has truncation_side {side!r}; right or left")
    return length if isinstance(length, int) and 0 < length < _NO_END else None, side


def _prompt(settings: dict[str, Any]) -> str:
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise InputError(f"{SENTENCE_SETTINGS} has no prompt {name!r}, its default_prompt_name")
    return prompts[name]


def _read(path: Path, absent: Any) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return absent
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
