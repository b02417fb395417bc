"""Reads a config.json key by key and refuses, by name, every key that nobody asked for."""

import os
from contextlib import suppress
from typing import Any

from ....runtime.errors import InputError

# Keys that say nothing about a forward pass: training, tooling, token ids that the tokenizer reads.
_HARMLESS = frozenset(
    [
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_pdrop",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "max_length",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "resid_pdrop",
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    ]
)
_OVERRIDE = "PIPPIN_IGNORE_CONFIG_KEYS"  # comma-separated keys that the user vouches for
_REQUIRED: Any = object()


class ConfigReader:
    """One config.json; each key is read once, what is left at the end is refused."""

    def __init__(self, config: dict[str, Any], where: str = "config.json"):
        self._stated, self._left = config, dict(config)
        self._where = where

    def has(self, key: str) -> bool:
        """Whether `key` stands there unread, be it null."""
        return key in self._left

    def states(self, key: str) -> bool:
        """Whether `key` stands there unread with a value."""
        return self._left.get(key) is not None

    def peek(self, key: str) -> Any:
        """The value of `key`, read or not, which stays as it is; None for an absent one."""
        return self._stated.get(key)

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        """The value of `key`; null counts as absent. InputError for a missing or mistyped one."""
        value = self._left.pop(key, None)
        if value is None:
            if default is _REQUIRED:
                raise InputError(f"{self._where} lacks {key!r}; the checkpoint is incomplete")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            with suppress(OverflowError):  # beyond all floats: refused as an int
                value = float(value)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(k.__name__ for k in kinds)
            raise InputError(f"{self._where} has {key} = {value!r}; expected {names}")
        return value

    def positive(self, key: str, default: Any = _REQUIRED) -> int:
        """A count of at least 1."""
        value = self.take(key, int, default)
        if value is not None and value < 1:
            raise InputError(f"{self._where} has {key} = {value}; expected at least 1")
        return value

    def spelled(self, *keys: str) -> str:
        """Which of several public names of one key stands here; the first where none does.

        Raises InputError where two of them stand here and contradict each other.
        """
        found = [key for key in keys if self._left.get(key) is not None] or [keys[0]]
        for other in found[1:]:
            if self._left[other] != self._left[found[0]]:
                raise InputError(
                    f"{self._where} has {found[0]} = {self._left[found[0]]!r} and {other} = "
                    f"{self._left[other]!r}, two names of one key; remove one"
                )
            del self._left[other]
        return found[0]

    def skip(self, *keys: str) -> None:
        """Pass over keys that cannot change the output of this family."""
        for key in keys:
            self._left.pop(key, None)

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse any value of `key` but null and `allowed`: another would change the output."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            wanted = " or ".join(repr(a) for a in allowed)
            raise InputError(
                f"{self._where} has {key} = {value!r}; Pippin implements only {wanted} here"
            )

    def finish(self) -> None:
        """Refuse what was not read and may change the output; null keys are absent keys."""
        vouched = set(filter(None, os.environ.get(_OVERRIDE, "").split(",")))
        left = [
            key
            for key, value in self._left.items()
            if value is not None and key not in _HARMLESS and key not in vouched
        ]
        if left:
            shown, listed = ", ".join(map(repr, sorted(left))), ",".join(sorted(left))
            raise InputError(
                f"{self._where} has {shown}, which Pippin does not implement; "
                f"if it cannot change the output, set {_OVERRIDE}={listed}"
            )
