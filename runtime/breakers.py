"""DRY's sequence breakers: from texts to token ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .sampling import SamplingParams

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_TEXTS: "WeakKeyDictionary[Tokenizer, list[str]]" = WeakKeyDictionary()


def resolve_breakers(params: SamplingParams, tokenizer: "Tokenizer") -> list[Sequence[int]]:
    """The breakers of `params` as token id sequences; none while DRY is off.

    A text stands for every token that contains it; when there is none, for its own tokens.
    """
    if params.dry_multiplier == 0:
        return []
    sequences: list[Sequence[int]] = []
    for breaker in params.dry_sequence_breakers:
        if not isinstance(breaker, str):
            sequences.append(breaker)
            continue
        found = [[i] for i, text in enumerate(_token_texts(tokenizer)) if breaker in text]
        sequences += found or [tokenizer.encode(breaker, add_special_tokens=False)]
    return sequences


def _token_texts(tokenizer: "Tokenizer") -> list[str]:
    """The text of each token; spelling out a whole vocabulary takes a while, so it is kept."""
    if tokenizer not in _TEXTS:
        _TEXTS[tokenizer] = [tokenizer.token_text(i) for i in range(tokenizer.vocab_size)]
    return _TEXTS[tokenizer]
