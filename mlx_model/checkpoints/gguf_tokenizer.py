"""The tokenizer in a GGUF's metadata, as tokenizer.json and tokenizer_config.json.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer. A `tokenizer.ggml.` key
that is not named here is refused unless it says "off".
"""

import json
from collections.abc import Callable
from typing import Any

from ...runtime.errors import InputError
from .gguf_pre_tokenizers import PreTokenizer, pre_tokenizer
from .gguf_vocabulary import BYTE, NORMAL, PREFIX, UNKNOWN, GGUFVocabulary

_SPACE = "▁"  # stands for a space in SentencePiece vocabularies, and for a word's start in BERT's


def convert_gguf_tokenizer(metadata: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json, and tokenizer_config.json, for a GGUF's metadata.

    Vocabularies: `gpt2` (byte-level BPE, split as `tokenizer.ggml.pre` says), `llama`
    (SentencePiece BPE, its merges derived from the scores), `gemma4` (SentencePiece BPE with
    merges) and `bert` (WordPiece). "chat_template" is a text, or, when the GGUF has named
    templates too, the list of them that transformers reads.

    Raises InputError, by name, for other vocabularies and pre-tokenizers, and for a damaged one.
    """
    vocabulary = GGUFVocabulary(metadata)
    kind = vocabulary.get("model", str)
    if kind not in _CONVERTERS:
        raise InputError(
            f"the GGUF has the vocabulary type {kind!r} (tokenizer.ggml.model); expected one of "
            f"{', '.join(_CONVERTERS)}; give the model's safetensors directory"
        )
    vocabulary.refuse_unknown_keys()
    document, config = _CONVERTERS[kind](vocabulary)
    document = {"version": "1.0", "truncation": None, "padding": None} | document
    document["added_tokens"] = vocabulary.added_tokens()
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | vocabulary.named_tokens() | config
    config["clean_up_tokenization_spaces"] = False
    if template := _chat_template(metadata):
        config["chat_template"] = template
    return json.dumps(document, ensure_ascii=False), config


def _byte_level(vocabulary: GGUFVocabulary) -> tuple[dict[str, Any], dict[str, Any]]:
    if vocabulary.optional("add_space_prefix"):
        raise InputError("the GGUF has tokenizer.ggml.add_space_prefix, not implemented for gpt2")
    pre: PreTokenizer = pre_tokenizer(vocabulary.optional("pre"))
    template, config = _bos_and_eos(vocabulary, add_bos=pre.add_bos)
    document = {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pre.steps)},
        "post_processor": template,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": _bpe(vocabulary, vocabulary.merges(), ignore_merges=pre.ignore_merges),
    }
    return document, config


def _sentence_piece(vocabulary: GGUFVocabulary) -> tuple[dict[str, Any], dict[str, Any]]:
    scores = vocabulary.get("scores", list)
    vocabulary.check_length("scores", scores)
    prefix = vocabulary.get("add_space_prefix", bool, True)
    return _sentence_piece_bpe(vocabulary, _merges_by_score(vocabulary, scores), prefix=prefix)


def _gemma4(vocabulary: GGUFVocabulary) -> tuple[dict[str, Any], dict[str, Any]]:
    prefix = vocabulary.get("add_space_prefix", bool, False)
    return _sentence_piece_bpe(vocabulary, vocabulary.merges(), prefix=prefix)


def _sentence_piece_bpe(
    vocabulary: GGUFVocabulary, merges: list[tuple[str, str]], *, prefix: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    template, config = _bos_and_eos(vocabulary, add_bos=True)
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(vocabulary, merges)
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": _unknown(vocabulary)}
    document = {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": template,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }
    return document, config


def _merges_by_score(vocabulary: GGUFVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE vocabulary.

    SentencePiece merges the pair whose joined token has the highest score; so each way to cut a
    token into two tokens is a merge, in the order of the scores.
    """
    ids, tokens = vocabulary.ids, vocabulary.tokens
    merges = []
    for index, token in enumerate(tokens):
        if vocabulary.types[index] != NORMAL:
            continue
        cuts = [(ids.get(token[:at]), ids.get(token[at:])) for at in range(1, len(token))]
        both = [(left, right) for left, right in cuts if left is not None and right is not None]
        merges += [(-scores[index], left, right) for left, right in both]
    merges.sort(key=lambda merge: merge[0])
    return [(tokens[left], tokens[right]) for _, left, right in merges]


def _unknown(vocabulary: GGUFVocabulary) -> str | None:
    """The unknown token, by its key or its type; none is needed when every byte is a token."""
    if (token := vocabulary.token("unknown_token_id")) is not None:
        return token
    if UNKNOWN in vocabulary.types:
        return vocabulary.tokens[vocabulary.types.index(UNKNOWN)]
    if vocabulary.types.count(BYTE) != 256:
        raise InputError("the GGUF's vocabulary has no unknown token, nor a token for every byte")
    return None


def _word_piece(vocabulary: GGUFVocabulary) -> tuple[dict[str, Any], dict[str, Any]]:
    unknown = vocabulary.token("unknown_token_id") or "[UNK]"
    vocab = {_bert_spelling(text): index for text, index in vocabulary.ids.items()}
    if len(vocab) != len(vocabulary.tokens) or unknown not in vocab:
        raise InputError("the GGUF's WordPiece vocabulary is damaged: tokens are double or missing")
    lowercase = vocabulary.get("normalizer.lowercase", bool, True)
    template = _frame(vocabulary, "cls_token_id", "seperator_token_id")
    del template["pair"][3]  # BERT does not repeat [CLS] before the second text
    document = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.optional("normalizer.strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
    return document, {}


def _bert_spelling(token: str) -> str:
    """BERT's spelling of a token: GGUF marks those that begin a word, BERT those that go on."""
    if token.startswith(_SPACE):
        return token.removeprefix(_SPACE)
    if token.startswith("[") and token.endswith("]"):
        return token
    return "##" + token


def _bpe(
    vocabulary: GGUFVocabulary, merges: list[tuple[str, str]], *, ignore_merges: bool = False
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _bos_and_eos(
    vocabulary: GGUFVocabulary, *, add_bos: bool
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The post-processor that adds BOS and EOS as the file says, and the config's two flags."""
    add_bos = vocabulary.get("add_bos_token", bool, add_bos)
    add_eos = vocabulary.get("add_eos_token", bool, False)
    config = {"add_bos_token": add_bos, "add_eos_token": add_eos}
    if not (add_bos or add_eos):
        return None, config
    first = "bos_token_id" if add_bos else None
    return _frame(vocabulary, first, "eos_token_id" if add_eos else None), config


def _frame(vocabulary: GGUFVocabulary, first: str | None, last: str | None) -> dict[str, Any]:
    """A post-processor that puts the tokens under these two keys around a text."""
    around = []
    for key in (first, last):
        token = vocabulary.token(key) if key else None
        if key and token is None:
            raise InputError(f"the GGUF adds a token around the text but has no {PREFIX}{key}")
        around.append(token)

    def framed(sequence: str, type_id: int) -> list[dict[str, Any]]:
        before, after = (
            [{"SpecialToken": {"id": token, "type_id": type_id}}] if token else []
            for token in around
        )
        return [*before, {"Sequence": {"id": sequence, "type_id": type_id}}, *after]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": framed("A", 0) + framed("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.ids[token]], "tokens": [token]}
            for token in around
            if token
        },
    }


def _chat_template(metadata: dict[str, Any]) -> str | list[dict[str, str]] | None:
    key = "tokenizer.chat_template"
    default = metadata.get(key)
    named = {
        name.removeprefix(key + "."): text
        for name, text in metadata.items()
        if name.startswith(key + ".")
    }
    if not named:
        return default
    everything = ({"default": default} if default else {}) | named
    return [{"name": name, "template": text} for name, text in everything.items()]


_CONVERTERS: dict[str, Callable[[GGUFVocabulary], tuple[dict[str, Any], dict[str, Any]]]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "gemma4": _gemma4,
    "bert": _word_piece,
}
