"""Heads by what they do: how much attention each gives to what a rule names, on stated texts.

A score is a mean of weights, so it lies between 0 and 1. It says what a head did on these texts,
and nothing of what the head is for (arXiv:1902.10186, and the reply arXiv:1908.04626).

Shapes: S tokens of a text · N layers · H query heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.errors import InputError
from .attention import weights
from .probe_texts import Probe, Span, bracket_probes, coreference_probes, topic_probes
from .trace import Trace, trace

if TYPE_CHECKING:
    from ...runtime.generator import Generator
    from ...runtime.tokenizer import Tokenizer

_SEED = 20220924
_REPEATED, _TIMES, _SEQUENCES = 25, 4, 2  # random tokens, as in arXiv:2209.11895
_FIRST_QUERY = 8  # with fewer keys than that, every weight is large

_DESCRIPTIONS = {
    "previous-token": (
        "In prose, from the ninth token on: the weight that a token gives to the one before it "
        "(Clark et al. 2019, arXiv:1906.04341). A head that goes by place alone has a control as "
        "high as its score."
    ),
    "first-token": (
        "In prose, from the ninth token on: the weight that a token gives to the first one, "
        "whatever that is, an attention sink (Xiao et al. 2023, arXiv:2309.17453). A control as "
        "high as the score says that the place draws it, not the word."
    ),
    "duplicate-token": (
        "In 25 random tokens written 4 times: the weight that a token gives to its own earlier "
        "occurrences (Wang et al. 2022, arXiv:2211.00593)."
    ),
    "induction": (
        "In 25 random tokens written 4 times: the weight that a token gives to the tokens that "
        "came right after its earlier occurrences (Olsson et al. 2022, arXiv:2209.11895)."
    ),
    "bracket": (
        "In prose and code with brackets and quotes: the weight that a closing one gives to the "
        "one that it closes. The rule is our own; the pairs are those that a parser finds."
    ),
    "distant-topic": (
        "In a text that leaves its topic for some sentences and comes back to it in other words: "
        "the weight that these words give to those of the beginning, all together. The rule and "
        "the texts are our own."
    ),
    "coreference": (
        "The weight that a pronoun gives to the noun it stands for, in sentences where it can "
        "stand for one only (after Clark et al. 2019, arXiv:1906.04341). A head that likes nouns "
        "of that kind scores as well."
    ),
}
KINDS = tuple(_DESCRIPTIONS)


@dataclass(frozen=True)
class HeadScore:
    """One head by one rule; both numbers are means of weights, 0 to 1."""

    kind: str  # one of KINDS
    layer: int  # from 0
    head: int  # from 0
    score: float
    control: float  # the same places, the text's tokens shuffled


@dataclass(frozen=True)
class KindScores:
    """All heads by one rule."""

    kind: str  # one of KINDS
    score: np.ndarray  # [N, H] float64, 0 to 1
    control: np.ndarray  # [N, H]: the same places, the texts' tokens shuffled
    uniform: float  # what a head would score that attends to all keys alike
    queries: int  # tokens that the means are over

    def best(self, count: int = 1) -> list[HeadScore]:
        """The `count` heads of the highest score; of equal ones, the lower layer and head first."""
        order = np.argsort(-self.score, axis=None, kind="stable")[:count]
        places = zip(*np.unravel_index(order, self.score.shape), strict=True)
        return [self._of(int(layer), int(head)) for layer, head in places]

    def _of(self, layer: int, head: int) -> HeadScore:
        found = float(self.score[layer, head]), float(self.control[layer, head])
        return HeadScore(self.kind, layer, head, *found)


@dataclass(frozen=True)
class HeadReport:
    """All heads of a model by every rule."""

    model: str
    kinds: Mapping[str, KindScores]  # by kind, in the order of KINDS


@dataclass(frozen=True)
class _Sample:
    """The tokens of one text, and by kind the weights to add up [S, S], 1 or 0: row i has the
    keys that belong to query i, all before it."""

    tokens: list[int]
    fixed: list[bool]  # of each token: whether the tokenizer put it there, and it is not shuffled
    masks: dict[str, np.ndarray]


def describe(kind: str) -> str:
    """What the score of `kind`, one of KINDS, is, and where it comes from."""
    return _DESCRIPTIONS[kind]


def score_heads(
    generator: "Generator", progress: Callable[[int, int], None] | None = None
) -> HeadReport:
    """Score every head of the model by every rule, on the texts of `probe_texts`.

    The control is the score of the same texts with their tokens shuffled (seeded): the weights at
    the same places. `progress(done, total)` counts texts. Raises InputError as `trace` does, and
    for a tokenizer that does not give a text back as it was.
    """
    samples = _samples(generator.tokenizer)
    totals = {kind: _Totals() for kind in KINDS}
    for index, sample in enumerate(samples):
        for shuffled in (False, True):
            tokens = _shuffle(sample, index) if shuffled else sample.tokens
            found = _sums(trace(generator, tokens), sample.masks)
            for kind, sums in found.items():
                totals[kind].add(sums, sample.masks[kind], shuffled)
            if progress:
                progress(2 * index + shuffled + 1, 2 * len(samples))
    model = generator.engine.info.model
    return HeadReport(model, {kind: total.scores(kind) for kind, total in totals.items()})


class _Totals:
    """What the samples of one kind add up to."""

    def __init__(self) -> None:
        self._sums: list[np.ndarray | float] = [0.0, 0.0]  # of the texts, of the shuffled ones
        self._uniform, self._queries = 0.0, 0

    def add(self, sums: np.ndarray, mask: np.ndarray, shuffled: bool) -> None:
        self._sums[shuffled] = self._sums[shuffled] + sums
        if not shuffled:
            self._queries += int(mask.any(axis=1).sum())
            self._uniform += float((mask.sum(axis=1) / np.arange(1, len(mask) + 1)).sum())

    def scores(self, kind: str) -> KindScores:
        score, control = (np.asarray(sums) / self._queries for sums in self._sums)
        return KindScores(kind, score, control, self._uniform / self._queries, self._queries)


def _sums(found: Trace, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By kind, the weights under its mask added up, [N, H]."""
    sums: dict[str, list[np.ndarray]] = {kind: [] for kind in masks}
    counts = sorted({layer.spec.heads for layer in found.layers.values()})
    if len(counts) > 1:
        raise InputError(
            f"the layers have from {counts[0]} to {counts[-1]} heads; heads are scored in models "
            "whose layers all have as many"
        )
    for layer in sorted(found.layers):
        rows = weights(found.layers[layer], range(len(found.tokens)))  # [H, S, S]; S is small
        for kind, mask in masks.items():
            sums[kind].append(np.einsum("hqs,qs->h", rows, mask, dtype=np.float64))
    return {kind: np.stack(layers) for kind, layers in sums.items()}


def _shuffle(sample: _Sample, index: int) -> list[int]:
    places = [place for place, fixed in enumerate(sample.fixed) if not fixed]
    order = np.random.default_rng([_SEED, index]).permutation(places)
    tokens = list(sample.tokens)
    for place, source in zip(places, order, strict=True):
        tokens[place] = sample.tokens[source]
    return tokens


def _samples(tokenizer: "Tokenizer") -> list[_Sample]:
    texts = {
        "bracket": bracket_probes(),
        "distant-topic": topic_probes(),
        "coreference": coreference_probes(),
    }
    samples = [_of_repeats(tokenizer, number) for number in range(_SEQUENCES)]
    for kind, probes in texts.items():
        samples += [_of_text(tokenizer, kind, probe) for probe in probes]
    return samples


def _of_repeats(tokenizer: "Tokenizer", number: int) -> _Sample:
    """Random tokens, all different, again and again."""
    rng = np.random.default_rng([_SEED, number])
    order = (int(token) for token in rng.permutation(tokenizer.vocab_size))
    usual = (t for t in order if t not in tokenizer.special_ids and tokenizer.token_text(t))
    once = [token for token, _ in zip(usual, range(_REPEATED), strict=False)]
    before = list(takewhile(tokenizer.special_ids.__contains__, tokenizer.encode("a")))
    tokens = before + once * _TIMES
    query, key = np.ogrid[: len(tokens), : len(tokens)]
    repeats = (query > key) & (key >= len(before)) & ((query - key) % len(once) == 0)
    after = np.roll(repeats, 1, axis=1)
    after[:, 0] = False
    masks = {"duplicate-token": repeats, "induction": after}
    fixed = [place < len(before) for place in range(len(tokens))]
    return _Sample(tokens, fixed, {kind: mask.astype(np.float32) for kind, mask in masks.items()})


def _of_text(tokenizer: "Tokenizer", kind: str, probe: Probe) -> _Sample:
    tokens = tokenizer.encode(probe.text)
    spans = token_spans(tokenizer, tokens)
    if tokenizer.decode(tokens) != probe.text:
        raise InputError(
            "the model's tokenizer does not give a text back as it was, so words cannot be found "
            "among its tokens; heads are scored with tokenizers that do"
        )
    size = len(tokens)
    masks = {kind: np.zeros((size, size), np.float32)}
    for query, keys in probe.links:
        row = _overlapping(spans, query)[-1]  # only there the word is complete
        columns = [at for key in keys for at in _overlapping(spans, key) if at < row]
        masks[kind][row, columns] = 1
    if kind != "bracket":  # the rest is prose
        queries = np.arange(_FIRST_QUERY, size)
        for name, columns in (("previous-token", queries - 1), ("first-token", 0)):
            masks[name] = np.zeros((size, size), np.float32)
            masks[name][queries, columns] = 1
    return _Sample(tokens, [token in tokenizer.special_ids for token in tokens], masks)


def token_spans(tokenizer: "Tokenizer", tokens: Sequence[int]) -> list[Span]:
    """Where each token stands in `tokenizer.decode(tokens)`.

    A special token stands nowhere, an empty span; of a character in several tokens, the last has
    it.
    """
    detokenizer, spans, at = tokenizer.detokenizer(), [], 0
    for token in tokens:
        end = at + len(detokenizer.add(token))
        spans.append((at, end))
        at = end
    if spans:
        spans[-1] = spans[-1][0], at + len(detokenizer.finish())
    return spans


def _overlapping(spans: Sequence[Span], wanted: Span) -> list[int]:
    """The tokens that hold some of the characters `wanted`."""
    begin, end = wanted
    return [at for at, (left, right) in enumerate(spans) if left < end and begin < right]
