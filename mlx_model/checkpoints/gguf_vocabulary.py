"""The `tokenizer.ggml.` keys of a GGUF, checked.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer.
"""

from typing import Any

from ...runtime.errors import InputError

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # token types

_NAMED_TOKENS = {  # key in the GGUF -> key in tokenizer_config.json
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
    "seperator_token_id": "sep_token",
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
}
_OTHER_KEYS = {  # read below, or without meaning for the ids
    *("model", "pre", "tokens", "token_type", "token_type_count", "scores", "merges"),
    *("add_bos_token", "add_eos_token", "add_space_prefix", "eot_token_id", "eom_token_id"),
    *(f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
    *("prefix_token_id", "suffix_token_id", "middle_token_id"),
}
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")


class GGUFVocabulary:
    """The `tokenizer.ggml.` keys, checked."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.tokens = [
            text or f"[EMPTY_{index}]" for index, text in enumerate(self.get("tokens", list))
        ]
        self.types = self.get("token_type", list)
        self.ids = {text: index for index, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(text for index, text in enumerate(self.tokens) if self.ids[text] != index)
            raise InputError(f"the GGUF's vocabulary is damaged: it has the token {twice!r} twice")
        self.check_length("token_type", self.types)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._metadata.get(PREFIX + key, default)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {value!r:.60}"
            raise InputError(f"the GGUF's {PREFIX}{key} {found}, expected a {kind.__name__}")
        return value

    def optional(self, key: str) -> Any:
        return self._metadata.get(PREFIX + key)

    def check_length(self, key: str, values: list[Any]) -> None:
        if len(values) != len(self.tokens):
            raise InputError(
                f"the GGUF's vocabulary is damaged: {len(values):,} {key} for "
                f"{len(self.tokens):,} tokens"
            )

    def token(self, key: str) -> str | None:
        """The text of the token whose id is under `key`."""
        index = self.optional(key)
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise InputError(
                f"the GGUF has {PREFIX}{key} = {index!r:.60}, but {len(self.tokens):,} tokens"
            )
        return self.tokens[index]

    def named_tokens(self) -> dict[str, str]:
        named = {theirs: self.token(ours) for ours, theirs in _NAMED_TOKENS.items()}
        return {name: text for name, text in named.items() if text is not None}

    def added_tokens(self) -> list[dict[str, Any]]:
        """Tokens that are matched in the text before it is split; control tokens are special."""
        special = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
        # Phi-3's take in the white space after them; a GGUF does not say so.
        phi3 = self._metadata.get("general.architecture") == "phi3"
        eager = phi3 and self.optional("model") == "llama"
        return [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": eager and text not in _PHI3_PLAIN,
                "normalized": False,
                "special": special[kind],
            }
            for index, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in special
        ]

    def merges(self) -> list[tuple[str, str]]:
        """The merges in the file; each is two tokens with a space between them."""
        pairs = []
        for merge in self.get("merges", list):
            left, space, right = merge[1:].partition(" ")  # a token may begin with a space
            if not space or not right:
                raise InputError(f"the GGUF's vocabulary is damaged: it has the merge {merge!r}")
            pairs.append((merge[0] + left, right))
        return pairs

    def refuse_unknown_keys(self) -> None:
        known = _OTHER_KEYS | set(_NAMED_TOKENS)
        if self.optional("model") == "bert":
            known |= {"normalizer.lowercase", "normalizer.strip_accents"}
        for key, value in sorted(self._metadata.items()):
            if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in known and value:
                raise InputError(f"the GGUF has {key}, which is not implemented")
