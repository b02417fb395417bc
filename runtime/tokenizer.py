"""Text to tokens and back, from the files that Hugging Face models carry."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from .chat_template import ChatTemplate, parse_chat_template
from .detokenizer import Detokenizer
from .end_of_turn import find_end_of_turn
from .errors import InputError
from .token_decoders import ReplaceText, Stage, build_stages, token_bytes

_NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# transformers' clean_up_tokenization, in its order
_CLEAN_UP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


class Tokenizer:
    """A model's tokenizer, with the behaviour of `transformers`' fast ones.

    tokenizer.json alone decides how text is split and which tokens are put around it;
    `add_bos_token` and `add_eos_token` of tokenizer_config.json are ignored, as transformers
    ignores them when there is a tokenizer.json.
    """

    def __init__(
        self, backend: Backend, tokenizer_config: dict[str, Any], stop_ids: Iterable[int]
    ) -> None:
        self._backend = backend
        self._config = tokenizer_config
        self._declared_stop_ids = frozenset(stop_ids)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added_tokens = {token.content: token.special for token in added.values()}
        self._special_tokens = _special_tokens(tokenizer_config)
        self.chat_template: ChatTemplate | None = parse_chat_template(
            tokenizer_config.get("chat_template"), self._special_tokens
        )
        self._new_stages()  # a decoder that is not implemented is refused now

    @classmethod
    def from_parts(
        cls,
        tokenizer_json: str,
        tokenizer_config: dict[str, Any],
        config: dict[str, Any],
        generation_config: dict[str, Any],
    ) -> "Tokenizer":
        """From the text of tokenizer.json and the other files' contents ({} for one not there).

        Raises InputError when tokenizer.json is missing or damaged, or contradicts the others.
        """
        if not tokenizer_json:
            raise InputError(
                "the model has no tokenizer.json; save it with transformers' fast tokenizer"
            )
        try:
            backend = Backend.from_str(tokenizer_json)
        except Exception as error:  # the library raises Exception itself
            reason = " ".join(str(error).split())
            raise InputError(f"the model's tokenizer.json cannot be read: {reason:.300}") from error
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(tokenizer_config.get("split_special_tokens", False))
        _add_declared_tokens(backend, tokenizer_config)
        stop_ids = {
            *_token_ids(config, "config.json"),
            *_token_ids(generation_config, "generation_config.json"),
        }
        return cls(backend, tokenizer_config, stop_ids)

    @classmethod
    def from_folder(cls, path: Path) -> "Tokenizer":
        """From a model's directory; a template in chat_template.jinja goes before the config's.

        Raises InputError as `from_parts` does, and for a file that is not valid JSON.
        """
        tokenizer_json = _read(path / "tokenizer.json")
        if tokenizer_json is None:
            raise InputError(
                f"{path} has no tokenizer.json; it is no model directory, or incomplete"
            )
        tokenizer_config = _read_json(path / "tokenizer_config.json")
        if (template := _read(path / "chat_template.jinja")) is not None:
            tokenizer_config |= {"chat_template": template}
        config = _read_json(path / "config.json")
        if not config:  # onnxruntime-genai's own folders have none
            genai = _read_json(path / "genai_config.json").get("model")
            config = genai if isinstance(genai, dict) else {}
        generation_config = _read_json(path / "generation_config.json")
        return cls.from_parts(tokenizer_json, tokenizer_config, config, generation_config)

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer knows; a model's V may be larger, never smaller."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def has_tokens_of(self, other: "Tokenizer") -> bool:
        """Whether both call the same tokens by the same ids."""
        return self._backend.get_vocab() == other._backend.get_vocab()

    def to_json(self) -> str:
        """tokenizer.json as it is in use: with all added tokens, without truncation or padding."""
        return self._backend.to_str()

    @cached_property
    def drops_first_space(self) -> bool:
        """Whether decoding drops a space at the very beginning, as SentencePiece's first word."""
        detokenizer = Detokenizer(lambda _: "▁x", self._new_stages())
        return detokenizer.add(0) + detokenizer.finish() == "x"

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that ends a reply.

        The union of what config.json, generation_config.json and tokenizer_config.json say, and of
        the token that the chat template writes after a reply.
        """
        ids = set(self._declared_stop_ids)
        if (eos := self._id_of("eos_token")) is not None:
            ids.add(eos)
        if self.chat_template is not None:
            token = find_end_of_turn(self.chat_template, self._added_tokens)
            if token is not None:
                ids.add(self._backend.token_to_id(token))
        return frozenset(ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text; with `add_special_tokens`, with the BOS (or EOS) that the model
        expects around it.

        Raises InputError for a lone surrogate, which is no text, and for a character that a
        vocabulary without an unknown token does not have.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # the library raises Exception itself
            where = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            if where is None:
                raise InputError(f"the tokenizer cannot encode the text: {error}") from error
            raise InputError(
                f"the text has a lone surrogate at character {where:,}; it is not valid Unicode"
            ) from error

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The tokens of a conversation, as `transformers.apply_chat_template` gives them.

        The template writes BOS itself where the model wants it; nothing is added. `kwargs` go to
        the template. Raises InputError when there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise InputError(
                "the model has no chat template; it is not made for chat (generate from plain "
                "text instead)"
            )
        text = self.chat_template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs
        )
        return self.encode(text, add_special_tokens=False)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens, as transformers' `decode` gives it, with one difference: the first
        bytes of a character whose rest is missing at the end are left out, not shown as U+FFFD.
        """
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        text = "".join([detokenizer.add(token) for token in ids])
        return text + detokenizer.finish()

    def detokenizer(
        self, *, skip_special_tokens: bool = True, shown: Collection[str] = ()
    ) -> Detokenizer:
        """A detokenizer for one reply; the special tokens `shown` are not skipped."""
        return Detokenizer(self._piece_of(skip_special_tokens, shown), self._new_stages())

    def token_text(self, token: int) -> str:
        """One token for display, as it reads inside a text; bytes that are no character as <0xE2>.

        "" for an id that the tokenizer does not know.
        """
        piece = self._backend.id_to_token(token)
        if piece is None or piece in self._added_tokens:
            return piece or ""
        if any(part["type"] == "ByteLevel" for part in self._decoder_parts):
            text = token_bytes(piece).decode("utf-8", "surrogateescape")
            return "".join(
                f"<0x{ord(c) & 0xFF:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text
            )
        # A letter before it, taken off again: a decoder may treat the first token otherwise.
        detokenizer = Detokenizer(lambda index: "x" if index < 0 else piece, self._new_stages())
        text = detokenizer.add(-1) + detokenizer.add(token) + detokenizer.finish()
        return text.removeprefix("x") or piece

    def _piece_of(
        self, skip_special_tokens: bool, shown: Collection[str] = ()
    ) -> Callable[[int], str | None]:
        id_to_token = self._backend.id_to_token
        if not skip_special_tokens:
            return id_to_token
        special = self.special_ids - {self._backend.token_to_id(token) for token in shown}
        return lambda token: None if token in special else id_to_token(token)

    @cached_property
    def _decoder(self) -> dict[str, Any] | None:
        """tokenizer.json's decoder, in the library's own spelling."""
        decoder = self._backend.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    @property
    def _decoder_parts(self) -> list[dict[str, Any]]:
        if self._decoder is None:
            return []
        return self._decoder.get("decoders", [self._decoder])

    def _new_stages(self) -> list[Stage]:
        stages = build_stages(self._decoder)
        # transformers tidies spaces only when asked to, and never for BPE, which it would damage
        clean_up = self._config.get("clean_up_tokenization_spaces", False)
        if clean_up and type(self._backend.model).__name__ != "BPE":
            stages += [ReplaceText(old, new) for old, new in _CLEAN_UP]
        return stages

    def _id_of(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json names, as templates know them: bos_token, …"""
    extra = config.get("extra_special_tokens")
    named = config | (extra if isinstance(extra, dict) else {})
    tokens = {name: _text(named.get(name)) for name in _NAMED_TOKENS}
    for name, value in named.items():
        if name.endswith("_token") and isinstance(value, str):
            tokens.setdefault(name, value)
    if isinstance(extra, dict):
        tokens |= {name: _text(value) for name, value in extra.items()}
    return {name: text for name, text in tokens.items() if text is not None}


def _text(token: Any) -> str | None:
    """A token's text, given as such or as a serialized AddedToken."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_declared_tokens(backend: Backend, config: dict[str, Any]) -> None:
    """Make known what tokenizer_config.json declares as a token and tokenizer.json does not.

    Only tokens of the vocabulary: an id of its own would lie outside the model's.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in _declared_tokens(config):
        if token.content not in known and backend.token_to_id(token.content) is not None:
            known.add(token.content)
            backend.add_tokens([token])


def _declared_tokens(config: dict[str, Any]) -> Iterator[AddedToken]:
    for index, fields in (config.get("added_tokens_decoder") or {}).items():
        text = _text(fields)
        if text is None or not isinstance(fields, dict):
            raise InputError(
                f"tokenizer_config.json has {fields!r:.60} as added token {index}, expected its "
                "content and flags"
            )
        yield AddedToken(text, **{flag: fields[flag] for flag in _TOKEN_FLAGS if flag in fields})
    for text in _special_tokens(config).values():
        yield AddedToken(text, special=True, normalized=False)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    for token in extra if isinstance(extra, list) else []:
        if (text := _text(token)) is not None:
            yield AddedToken(text, special=True, normalized=False)


def _token_ids(config: dict[str, Any], file: str) -> list[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
        raise InputError(f"{file} has eos_token_id = {value!r:.60}, expected token ids")
    return ids


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    text = _read(path)
    try:
        value = json.loads(text) if text is not None else {}
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value
