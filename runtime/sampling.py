"""How the next token is chosen: the parameters, their one order of application, the draw.

Order, each step on what the one before left:

0. constraint            tokens that may not come next are removed
1. logit bias            added
2. repetition            over prompt and reply, as in CTRL and `transformers`
3. presence, frequency   over the reply alone, as in the OpenAI API
4. DRY                   over prompt and reply
   temperature 0 ends here: the largest logit, the lowest id among equals
5. temperature
6. top-k, top-p, min-p, typical-p
7. XTC
8. the draw

Temperature comes before the truncations, as in `transformers` and vLLM (llama.cpp puts it last):
the values that model authors publish in `generation_config.json` were tuned that way. Steps 5 and 6
follow `transformers` in order and in meaning; XTC comes after them, since it may only choose among
tokens that are good enough.

Token t of a sequence draws with u_t from Philox (`philox.py`): the inverse of the cumulative
distribution, tokens ordered by probability, then id. Nothing is stored between draws but the
tokens themselves, so that the same seed gives the same text on every engine, however it batches
or runs ahead; two engines part only where their logits do.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from . import filters
from .constraints import ConstraintState
from .errors import InputError
from .penalties import CountPenalties, DryPenalty
from .philox import token_draws

Array = Any

_RANGES: dict[str, tuple[str, Any]] = {
    "temperature": ("0 or more", lambda v: v >= 0),
    "top_p": ("above 0, up to 1", lambda v: 0 < v <= 1),
    "min_p": ("0 to 1", lambda v: 0 <= v <= 1),
    "typical_p": ("above 0, up to 1", lambda v: 0 < v <= 1),
    "xtc_probability": ("0 to 1", lambda v: 0 <= v <= 1),
    "xtc_threshold": ("0 to 1", lambda v: 0 <= v <= 1),
    "dry_multiplier": ("0 or more", lambda v: v >= 0),
    "dry_base": ("1 or more", lambda v: v >= 1),
    "repetition_penalty": ("above 0", lambda v: v > 0),
    "presence_penalty": ("-2 to 2", lambda v: -2 <= v <= 2),
    "frequency_penalty": ("-2 to 2", lambda v: -2 <= v <= 2),
}
_INTEGERS: dict[str, tuple[str, Any]] = {
    "top_k": ("0 or more", lambda v: v >= 0),
    "dry_allowed_length": ("1 or more", lambda v: v >= 1),
    "dry_penalty_last_n": ("1 or more", lambda v: v >= 1),
    "penalty_last_n": ("1 or more", lambda v: v >= 1),
    "seed": ("0 to 2^64-1", lambda v: 0 <= v < 2**64),
    "max_tokens": ("1 or more", lambda v: v >= 1),
    "prompt_lookup": ("0 to 64", lambda v: 0 <= v <= 64),
}
_OPTIONAL = ("dry_penalty_last_n", "penalty_last_n", "seed", "max_tokens", "prompt_lookup")


@dataclass(frozen=True)
class SamplingParams:
    """What to sample and when to stop; the defaults are greedy, without penalties or a limit.

    Raises InputError that names the value and its range.
    """

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    typical_p: float = 1.0  # 1: off
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2  # tokens; shorter repeats are free
    dry_penalty_last_n: int | None = None  # tokens; None: all
    dry_sequence_breakers: Sequence[str | Sequence[int]] = ("\n", ":", '"', "*")  # texts or ids
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int | None = None  # tokens the three penalties above look at; None: all
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token id; -inf bans
    seed: int | None = None  # None: a new one for each generation
    max_tokens: int | None = None  # None: up to the end of the context
    stop: Sequence[str] = ()  # texts that end the reply and are left out of it
    ignore_eos: bool = False  # run on past end-of-turn tokens
    # Tokens to guess at once where the text repeats itself. 0: off; None: off unless that leaves
    # every token as it is (`EngineInfo.rows_alike`).
    prompt_lookup: int | None = None

    def __post_init__(self) -> None:
        for name, (wanted, holds) in _RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not holds(value):
                raise _out_of_range(name, value, wanted)
        for name, (wanted, holds) in _INTEGERS.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole and holds(value)) and not (value is None and name in _OPTIONAL):
                raise _out_of_range(name, value, f"a whole number, {wanted}")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _check_collections(self)


def _check_collections(params: SamplingParams) -> None:
    if not all(isinstance(text, str) and text for text in params.stop):
        raise _out_of_range("stop", list(params.stop), "texts of at least one character")
    if not all(len(breaker) for breaker in params.dry_sequence_breakers):
        raise _out_of_range("dry_sequence_breakers", "an empty one", "not empty")
    for token, bias in params.logit_bias.items():
        if math.isnan(bias) or bias == math.inf:
            raise _out_of_range(f"logit_bias of token {token}", bias, "finite or -inf")


def _out_of_range(name: str, value: Any, wanted: str) -> InputError:
    return InputError(f"{name} is {value!r}; it must be {wanted}")


class Sampler:
    """Chooses the tokens of one generation; a `Choose` of the engine protocol.

    `xp` is the array namespace of the engine's logits. With mlx.core nothing is evaluated here
    unless DRY is on or there is a `constraint`, which read the tokens. Raises InputError for a
    `logit_bias` on a token that the vocabulary (V = `vocab_size`) does not have.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        xp: ModuleType,
        prompt_tokens: Sequence[int],
        sequence: int = 0,
        constraint: ConstraintState | None = None,
    ) -> None:
        if vocab_size > filters.MAX_VOCAB:
            raise InputError(f"vocabulary of {vocab_size}; at most {filters.MAX_VOCAB} can be used")
        self._params, self._xp = params, xp
        self._vocab_size = vocab_size
        self._seed, self._sequence = params.seed or 0, sequence
        self._constraint = constraint
        self._bias = self._make_bias()
        self._counts = self._make_counts(prompt_tokens)
        self._dry = self._make_dry(prompt_tokens)
        room = xp is np and params.temperature > 0
        self._room = (
            (np.empty(vocab_size, np.float32), np.empty(vocab_size, np.int64)) if room else None
        )
        self._last: Array | None = None

    def __call__(self, logits: Array, index: int) -> Array:
        """The token chosen from `logits` [V], 0-d int32; -1 when all are NaN or -inf.

        `index` is t, the number of tokens chosen before this one.
        """
        xp = self._xp
        with np.errstate(all="ignore"):
            self._take_last()
            logits = self.penalized(logits)
            if self._params.temperature == 0:
                token = xp.argmax(logits)
            else:
                token = self._sample(logits, index)
            found = xp.max(logits) > -xp.inf
            self._last = xp.where(found, token.astype(xp.int32), xp.array(-1, dtype=xp.int32))
        return self._last

    def penalized(self, logits: Array) -> Array:
        """Steps 0 to 4, on float32 [V]; NaN becomes -inf, and inf a large finite number."""
        xp = self._xp
        for _, adjusted in self.adjustments(logits):
            logits = adjusted
        if xp is np and np.isfinite(logits.max()):  # a NaN anywhere would be the largest
            return logits
        return xp.minimum(xp.where(xp.isnan(logits), -xp.inf, logits), 3e38)

    def adjustments(self, logits: Array) -> Iterator[tuple[str, Array]]:
        """Those of steps 0 to 4 that are in use: the name of each, and `logits` [V] after it."""
        xp = self._xp
        if self._constraint is not None:
            logits = xp.where(xp.array(self._constraint.allowed()), logits, -xp.inf)
            yield "constraint", logits
        if self._bias is not None:
            logits = logits + self._bias
            yield "logit_bias", logits
        if self._counts is not None:
            logits = self._counts.apply(logits)
            yield "penalties", logits
        if self._dry is not None:
            ids, loss = self._dry.penalties()
            dense = np.zeros(self._vocab_size, np.float32)
            dense[ids] = loss
            logits = logits - xp.array(dense)
            yield "dry", logits

    def distribution(self, logits: Array, x: int = 2**32 - 1) -> tuple[Array, Array]:
        """Steps 5 to 7 for penalized `logits`: all that can be drawn, as `filters` describes it."""
        weights = filters.weigh(self._xp, logits, self._params.temperature)
        ids, weights = filters.ranked(
            self._xp, weights, self._xp.arange(self._vocab_size), self._params.top_k
        )
        return ids, self._truncated(weights, self._xp.sum(weights), x)

    def _sample(self, logits: Array, t: int) -> Array:
        xp, p = self._xp, self._params
        u, x = token_draws(self._seed, self._sequence, t)
        weights = filters.weigh(xp, logits, p.temperature, self._room)
        total = xp.sum(weights)
        ids = self._candidates(weights, total, u)
        ids, weights = filters.ranked(xp, xp.take(weights, ids), ids, p.top_k)
        if p.top_k:
            total = xp.sum(weights)
        if self._truncates:
            weights = self._truncated(weights, total, x)
            total = xp.sum(weights)
        return filters.draw(xp, ids, weights, total, u)

    @property
    def _truncates(self) -> bool:
        p = self._params
        return p.top_p < 1 or p.min_p > 0 or p.typical_p < 1 or p.xtc_probability > 0

    def _candidates(self, weights: Array, total: Array, u: int) -> Array:
        """Ids to rank: on the host as few as decide the draw, on a device all."""
        xp, p = self._xp, self._params
        if xp is not np:
            return xp.arange(self._vocab_size)
        if p.top_k:
            return filters.likeliest(weights, p.top_k, 0, 0)
        mass, floor = total, 0
        if p.min_p > 0:
            floor = filters.min_weight(p.min_p)
        if not self._truncates:
            mass = filters.share(xp, total, u) + 1
        elif p.top_p < 1:
            mass = filters.share(xp, total, filters.fraction(p.top_p)) + 1
        return filters.likeliest(weights, 0, mass, floor)

    def _truncated(self, weights: Array, total: Array, x: int) -> Array:
        for _, left in self.truncations(weights, total, x):
            weights = left
        return weights

    def truncations(self, weights: Array, total: Array, x: int) -> Iterator[tuple[str, Array]]:
        """Those of steps 6 (after top-k) and 7 that are in use: names, and weights after each.

        `weights` [C] are in order, of a distribution that weighs `total`; `x` is the token's x_t.
        """
        xp, p = self._xp, self._params
        if p.top_p < 1:
            weights = filters.top_p(xp, weights, total, p.top_p)
            yield "top_p", weights
        if p.min_p > 0:
            weights = filters.min_p(xp, weights, p.min_p)
            yield "min_p", weights
        if p.typical_p < 1:
            weights = filters.typical(xp, weights, p.typical_p)
            yield "typical_p", weights
        if x < filters.fraction(p.xtc_probability):
            weights = filters.exclude_top(xp, weights, p.xtc_threshold)
            yield "xtc", weights

    def _take_last(self) -> None:
        """Count the token of the previous call; only now, since some have to wait for its value."""
        if self._last is None:
            return
        if self._constraint is not None and (token := int(self._last)) >= 0:
            self._constraint.accept(token)
        if self._counts is not None:
            self._counts.append(self._last)
        if self._dry is not None:
            self._dry.append(int(self._last))

    def _make_bias(self) -> Array | None:
        bias = self._params.logit_bias
        if not bias:
            return None
        dense = np.zeros(self._vocab_size, np.float32)
        for token, value in bias.items():
            if not 0 <= token < self._vocab_size:
                raise InputError(
                    f"logit_bias names token {token}; the vocabulary ends at {self._vocab_size - 1}"
                )
            dense[token] = value
        return self._xp.array(dense)

    def _make_counts(self, prompt: Sequence[int]) -> CountPenalties | None:
        p = self._params
        values = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        if values == (1.0, 0.0, 0.0):
            return None
        return CountPenalties(
            self._xp,
            self._vocab_size,
            prompt,
            repetition=p.repetition_penalty,
            presence=p.presence_penalty,
            frequency=p.frequency_penalty,
            last_n=p.penalty_last_n,
        )

    def _make_dry(self, prompt: Sequence[int]) -> DryPenalty | None:
        p = self._params
        if p.dry_multiplier == 0:
            return None
        return DryPenalty(
            prompt,
            multiplier=p.dry_multiplier,
            base=p.dry_base,
            allowed_length=p.dry_allowed_length,
            last_n=p.dry_penalty_last_n,
            breakers=[b for b in p.dry_sequence_breakers if not isinstance(b, str)],
        )
