"""How a byte-level BPE vocabulary splits text before merging, by `tokenizer.ggml.pre`.

A GGUF names the pre-tokenizer and does not describe it. Each row states what the tokenizer.json of
the model that the name stands for says, in tokenizer.json's own terms. Only names are listed whose
ids have been checked, or that stand for the same pre-tokenizer as one that has been (`glm4` and
`stablelm2`: by the patterns in those models' own tokenizer code).
"""

from dataclasses import dataclass
from typing import Any

from ...runtime.errors import InputError

Step = dict[str, Any]  # one entry of tokenizer.json's `pre_tokenizer`


@dataclass(frozen=True)
class PreTokenizer:
    """What a name under `tokenizer.ggml.pre` stands for."""

    steps: tuple[Step, ...]
    nfc: bool = False  # text is composed first (Unicode NFC)
    ignore_merges: bool = False  # a word that is a token is taken whole, whatever the merges say
    add_bos: bool = False  # when the file does not say


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name. Raises InputError when it is not known, or missing."""
    if name is None:
        raise InputError(
            "the GGUF has no tokenizer.ggml.pre, so how its text is split is not known; convert "
            "the model again with a newer converter, or give its safetensors directory"
        )
    if name not in _PRE_TOKENIZERS:
        raise InputError(
            f"the GGUF has tokenizer.ggml.pre {name!r}, which is not implemented (known: "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}); give the model's safetensors directory"
        )
    return _PRE_TOKENIZERS[name]


def split(pattern: str) -> Step:
    """Every match of `pattern` (Oniguruma) becomes a word of its own."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level(*, use_regex: bool) -> Step:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _digits(*, each: bool) -> Step:
    return {"type": "Digits", "individual_digits": each}


_GPT2 = _byte_level(use_regex=True)  # GPT-2's own pattern
_BYTES = _byte_level(use_regex=False)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"

_LLAMA3 = _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _SIGNS + _BREAKS
_QWEN2 = _CONTRACTIONS + _WORDS + r"|\p{N}" + _SIGNS + _BREAKS
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _BREAKS
)
# words by letter case: capitals, then small letters
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BREAKS
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _CASED_REST
_GPT4O = "|".join(f"{word}{_CONTRACTIONS}?" for word in _CASED) + r"|\p{N}{1,3}" + _CASED_REST

# DeepSeek LLM's cased letters: those of an older Unicode, listed in its tokenizer.json.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_LLAMA3_WHOLE = PreTokenizer((split(_LLAMA3), _BYTES), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = PreTokenizer((split(_LLAMA3), _BYTES))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_GPT_NEOX = PreTokenizer((_GPT2,), nfc=True)
_QWEN2_COMPOSED = PreTokenizer((split(_QWEN2), _BYTES), nfc=True)
_SINGLE_DIGITS = PreTokenizer((_digits(each=True), _GPT2))

_PRE_TOKENIZERS = {
    "command-r": PreTokenizer((_digits(each=True), _GPT2), nfc=True),
    "dbrx": _LLAMA3_MERGED,
    "deepseek-coder": PreTokenizer(
        (
            split(r"[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split(_CJK),
            _digits(each=True),
            _BYTES,
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            split(r"[\r\n]"),
            split(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
            split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
            split(r"\s+$"),
            split(_CJK),
            _digits(each=True),
            _BYTES,
        )
    ),
    "deepseek-r1-qwen": PreTokenizer((split(_QWEN2), _BYTES)),
    "falcon": PreTokenizer(
        (
            {"type": "Punctuation", "behavior": "Contiguous"},
            _GPT2,
            _digits(each=False),
            split("[0-9][0-9][0-9]"),
        )
    ),
    "falcon3": _LLAMA3_WHOLE,
    "glm4": _LLAMA3_MERGED,
    "gpt-2": _PLAIN_GPT2,
    "gpt-4o": PreTokenizer((split(_GPT4O), _BYTES)),
    "lfm2": _LLAMA3_WHOLE,
    "llama-bpe": _LLAMA3_WHOLE,
    "llama-v3": _LLAMA3_WHOLE,
    "llama3": _LLAMA3_WHOLE,
    "llama4": PreTokenizer((split(_GPT4O), _BYTES)),
    "mpt": _GPT_NEOX,
    "olmo": _GPT_NEOX,
    "phi-2": _PLAIN_GPT2,
    "pixtral": _LLAMA3_WHOLE,
    "qwen2": _QWEN2_COMPOSED,
    "qwen35": PreTokenizer((split(_QWEN35), _BYTES)),
    "refact": _SINGLE_DIGITS,
    "smaug-bpe": _LLAMA3_MERGED,
    "smollm": _SINGLE_DIGITS,
    "stablelm2": _QWEN2_COMPOSED,
    "starcoder": _SINGLE_DIGITS,
    "tekken": PreTokenizer((split(_TEKKEN), _BYTES), ignore_merges=True, add_bos=True),
}
