"""One reply, token by token: what could have come next, what the filters cut, what was drawn."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime import filters
from ...runtime.breakers import resolve_breakers
from ...runtime.engine import Progress, check_tokens
from ...runtime.errors import InputError, PippinError
from ...runtime.overflow import reply_budget
from ...runtime.philox import token_draws
from ...runtime.reply import Reply
from ...runtime.sampling import Sampler, SamplingParams

if TYPE_CHECKING:
    from ...runtime.generator import Generator

Array = Any


@dataclass(frozen=True)
class Stage:
    """One step of the sampler, in the order in which it applies them."""

    name: str  # "penalties", "temperature", "top_k", …
    settings: Mapping[str, float]  # of `SamplingParams`, those that the step reads
    changed: int  # tokens whose logit it changed
    removed: int  # tokens that could be drawn before it and cannot any more
    removed_probability: float  # of them together, just before it
    left: int  # tokens that can be drawn after it


@dataclass(frozen=True)
class Candidate:
    """A token that might have come next."""

    token: int
    text: str
    logit: float  # as the model gave it
    adjusted: float | None  # after constraint, bias and penalties; None: -inf
    probability: float  # softmax of the model's logits
    final: float  # with which it could be drawn; 0 when it was cut
    cut_by: str | None  # the stage that removed it
    rank: int  # by the model's logits, from 0


@dataclass(frozen=True)
class Draw:
    """Why it was this token: `number` fell into [low, high), its part of the cumulative
    distribution over what was left, likeliest token first (`runtime/sampling.py`).
    """

    number: float  # u_t in [0, 1)
    low: float
    high: float


@dataclass(frozen=True)
class Step:
    """The choice of token t of the reply."""

    position: int  # of the token whose logits these are: the one before the chosen token
    chosen: Candidate
    candidates: tuple[Candidate, ...]  # the likeliest by the model, by falling logit
    stages: tuple[Stage, ...]
    draw: Draw | None  # None: temperature 0, where the largest adjusted logit is taken


@dataclass(frozen=True)
class Walkthrough:
    """A reply and how each of its tokens was chosen."""

    prompt: tuple[int, ...]
    params: SamplingParams  # with the seed that was used
    steps: tuple[Step, ...]
    text: str
    finish_reason: str  # as `Chunk` has it

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the reply, an end-of-turn token included."""
        return tuple(step.chosen.token for step in self.steps)


def walk(
    generator: "Generator",
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    candidates: int = 8,
    progress: Progress | None = None,
) -> Walkthrough:
    """Generate after the tokens `prompt` as `Generator.generate` does, and watch the sampler.

    The tokens are those that `generate` gives for the same `params`; guessing ahead, which changes
    none, is left out. Each step keeps the `candidates` likeliest tokens. Raises InputError as
    `Generator.stream` does, and PippinError when all logits are NaN.
    """
    if candidates < 1:
        raise InputError(f"candidates is {candidates}; it must be 1 or more")
    engine = generator.engine
    check_tokens(prompt, engine.info.vocab_size)
    params = replace(
        params,
        max_tokens=reply_budget(len(prompt), params.max_tokens, engine.info.context),
        seed=secrets.randbits(32) if params.seed is None else params.seed,
        dry_sequence_breakers=resolve_breakers(params, generator.tokenizer),
    )
    sampler = Sampler(params, engine.info.vocab_size, engine.xp, list(prompt))
    text_of = generator.tokenizer.token_text
    watch = _Watch(sampler, params, engine.xp, text_of, len(prompt), candidates)
    session = engine.open()
    logits = session.prefill(prompt, progress=progress)
    reply, text, taken = Reply(params, generator.tokenizer), "", 0
    tokens = session.decode(logits, watch)
    try:
        while reply.finish_reason is None:
            token = next(tokens)
            if token < 0:
                raise PippinError(
                    f"the model's logits after {len(prompt) + taken} tokens are all NaN or masked: "
                    "its weights are damaged, or too large for its number format"
                )
            text, taken = text + reply.add(token), taken + 1
    finally:
        tokens.close()
    steps = tuple(watch.steps[:taken])  # an engine may have run ahead
    return Walkthrough(tuple(prompt), params, steps, text, reply.finish_reason)


class _Watch:
    """A `Choose` that has the sampler choose, then asks it how."""

    def __init__(
        self,
        sampler: Sampler,
        params: SamplingParams,
        xp: ModuleType,
        text_of: Callable[[int], str],
        prompt: int,
        count: int,
    ) -> None:
        self._sampler, self._params, self._xp = sampler, params, xp
        self._text_of, self._prompt, self._count = text_of, prompt, count
        self.steps: list[Step] = []

    def __call__(self, logits: Array, index: int) -> Array:
        token = self._sampler(logits, index)
        if (chosen := int(token)) >= 0:
            # The sampler counts a token only when it is asked for the next one: until then its
            # steps give what they gave for the choice.
            self.steps.append(self._explain(logits, chosen, index))
        return token

    def _explain(self, logits: Array, chosen: int, index: int) -> Step:
        model = np.nan_to_num(np.array(logits, np.float32), nan=-np.inf, posinf=3e38)
        order = np.argsort(-model, kind="stable")
        shown = [int(token) for token in order[: self._count] if model[token] > -np.inf]
        stages = _Stages(self._params, {*shown, chosen})
        with np.errstate(all="ignore"):
            before = model
            for name, after in self._sampler.adjustments(logits):
                after = np.array(after)
                stages.adjusted(name, before, after)
                before = after
            adjusted = self._sampler.penalized(logits)
            final, draw = self._draw(adjusted, chosen, index, stages)
        values, probability = np.array(adjusted), _softmax(model)

        def candidate(token: int) -> Candidate:
            return Candidate(
                token,
                self._text_of(token),
                float(model[token]),
                float(values[token]) if values[token] > -np.inf else None,
                float(probability[token]),
                float(final[token]),
                stages.cuts.get(token),
                int(np.flatnonzero(order == token)[0]),
            )

        position = self._prompt + index - 1
        listed = tuple(candidate(token) for token in shown)
        return Step(position, candidate(chosen), listed, tuple(stages.done), draw)

    def _draw(
        self, adjusted: Array, chosen: int, index: int, stages: "_Stages"
    ) -> tuple[np.ndarray, Draw | None]:
        """Steps 5 to 8 over the whole vocabulary: each token's probability [V], and the draw."""
        xp, p = self._xp, self._params
        if p.temperature == 0:
            return np.eye(1, adjusted.size, chosen)[0], None
        u, x = token_draws(p.seed, 0, index)
        could = np.array(adjusted) > -np.inf
        ids, weights = filters.ranked(
            xp, filters.weigh(xp, adjusted, p.temperature), xp.arange(adjusted.size)
        )
        now = stages.cut("temperature", could.astype(np.int64), _dense(ids, weights, could.size))
        if p.top_k:
            ids, weights = ids[: p.top_k], weights[: p.top_k]
            now = stages.cut("top_k", now, _dense(ids, weights, could.size))
        for name, left in self._sampler.truncations(weights, xp.sum(weights), x):
            weights = left
            now = stages.cut(name, now, _dense(ids, weights, could.size))
        host, total = np.array(weights), int(now.sum())
        low = int(host[: np.flatnonzero(np.array(ids) == chosen)[0]].sum())
        draw = Draw(u / 2**32, low / total, (low + int(now[chosen])) / total)
        return now / total, draw


class _Stages:
    """What each step of the sampler did, and which of the `watched` tokens it removed."""

    def __init__(self, params: SamplingParams, watched: set[int]) -> None:
        self._params, self._watched = params, watched
        self.done: list[Stage] = []
        self.cuts: dict[int, str] = {}

    def adjusted(self, name: str, before: np.ndarray, after: np.ndarray) -> None:
        """A step on logits [V]."""
        could, can = before > -np.inf, after > -np.inf
        share = float(_softmax(before)[could & ~can].sum())
        self._add(name, int(np.sum(before != after)), share, could, can)

    def cut(self, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """A step on weights [V], 0 for what cannot be drawn; returns `after`."""
        could, can = before > 0, after > 0
        # Temperature turns logits into weights: what it drops is too unlikely to have one.
        share = 0.0 if name == "temperature" else float(before[~can].sum() / before.sum())
        self._add(name, 0, share, could, can)
        return after

    def _add(
        self, name: str, changed: int, share: float, could: np.ndarray, can: np.ndarray
    ) -> None:
        values = {field: getattr(self._params, field) for field in _SETTINGS.get(name, (name,))}
        settings = {field: value for field, value in values.items() if value is not None}
        removed = int(np.sum(could & ~can))
        self.done.append(Stage(name, settings, changed, removed, share, int(can.sum())))
        for token in self._watched:
            if not can[token]:
                self.cuts.setdefault(token, name)


_SETTINGS: dict[str, Sequence[str]] = {
    "logit_bias": (),
    "penalties": (
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n"),
    ),
    "dry": ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    "xtc": ("xtc_probability", "xtc_threshold"),
}


def _dense(ids: Array, weights: Array, size: int) -> np.ndarray:
    """Weights by token, int64 [size]."""
    dense = np.zeros(size, np.int64)
    dense[np.array(ids)] = np.array(weights)
    return dense


def _softmax(logits: np.ndarray) -> np.ndarray:
    mass = np.exp(logits.astype(np.float64) - logits.max())
    return mass / mass.sum()
