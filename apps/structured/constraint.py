"""A grammar over one model's tokens, through the llguidance library; V vocabulary.

At each token llguidance walks the vocabulary's trie and the grammar side by side, and marks what
may follow.
"""

import json
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...runtime.errors import InputError, PippinError
from ...runtime.generator import Generator
from ...runtime.tokenizer import Tokenizer
from .grammar import Grammar, plain_reason

# llguidance's form of each tokenizer; it takes seconds to make for the largest vocabularies
_vocabularies: "WeakKeyDictionary[Tokenizer, dict[int, Any]]" = WeakKeyDictionary()


class TokenConstraint:
    """Fulfils `runtime.constraints.Constraint`."""

    def __init__(self, matcher: Any, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._matcher, self._vocab_size, self._end_ids = matcher, vocab_size, end_ids

    def start(self) -> "TokenConstraintState":
        return TokenConstraintState(self._matcher.deep_copy(), self._vocab_size, self._end_ids)


class TokenConstraintState:
    """Fulfils `runtime.constraints.ConstraintState`.

    Once the grammar cannot go on, and after the end, only end-of-turn tokens are allowed.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._end_ids = end_ids
        self._ends = sorted(end_ids)
        self._bits = np.zeros(-(-vocab_size // 32), np.int32)
        self._ended = False

    def allowed(self) -> np.ndarray:
        matcher, bits = self._matcher, self._bits
        if self._ended or matcher.is_stopped():
            may_end, bits[:] = True, 0
        else:
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            may_end = matcher.is_accepting()
        self._check()
        mask = np.unpackbits(bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        mask[self._ends] = may_end  # also where such a token's text would be allowed as text
        if not mask.any():
            raise PippinError("no token of this vocabulary can follow in the grammar of the reply")
        return mask.view(np.bool_)

    def accept(self, token: int) -> None:
        if self._ended:
            return  # an engine that runs ahead chooses once more after the end
        if token in self._end_ids:
            self._ended = True
            return
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = plain_reason(self._matcher.get_error())
            raise PippinError(f"the grammar of the reply failed: {reason}")


def constraint_for(generator: Generator, grammar: Grammar) -> TokenConstraint:
    """The constraint that holds the replies of `generator` to `grammar`.

    Raises InputError when llguidance cannot use the tokenizer, the model has no end-of-turn token,
    or the grammar is too large.
    """
    from llguidance import LLMatcher

    tokenizer, vocab_size = generator.tokenizer, generator.engine.info.vocab_size
    end_ids = tokenizer.eos_token_ids
    if not end_ids:
        raise InputError(
            "the model has no end-of-turn token, so a structured reply could not end; name one as "
            "eos_token_id in generation_config.json"
        )
    vocabulary = _vocabulary(tokenizer, vocab_size)
    before = " " if tokenizer.drops_first_space else ""
    matcher = LLMatcher(vocabulary, grammar.lark(before), log_level=0)
    if matcher.is_error():
        reason = plain_reason(matcher.get_error())
        raise InputError(f"this {grammar.kind} cannot be enforced: {reason}")
    return TokenConstraint(matcher, vocab_size, end_ids)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Any:
    """llguidance's form of a tokenizer; ids from its end to V are never allowed."""
    from llguidance import LLTokenizer

    made = _vocabularies.setdefault(tokenizer, {})
    if vocab_size not in made:
        text = tokenizer.to_json()
        try:
            made[vocab_size] = LLTokenizer(
                text, n_vocab=vocab_size, eos_token=sorted(tokenizer.eos_token_ids)
            )
        except ValueError as error:
            decoder = (json.loads(text).get("decoder") or {}).get("type", "no")
            raise InputError(
                f"structured output needs a byte-level or SentencePiece tokenizer; this one's "
                f"decoder is {decoder} ({error!s:.80})"
            ) from None
    return made[vocab_size]
