"""Do the backends say the same? Every pair that can run on this machine, measured and judged.

The thresholds are in one table, `LIMITS`. Logit differences are relative to the largest reference
logit; KL is in nats, the mean over positions of KL(reference ‖ other).
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..export.folder import export_folder
from ..export.quantize import quantize_decoder
from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.decoder import Decoder
from ..mlx_model.engine import MlxEngine
from ..mlx_model.families import read_family
from ..mlx_model.load import load_decoder
from ..mlx_model.numpy_ops import NumpyCache, NumpyOps
from ..runtime.engine import Engine, Session
from ..runtime.errors import InputError
from ..runtime.ort_engine import OrtEngine
from .parity_text import TEXT
from .perplexity import log_softmax

_LOGITS, _KL, _TOP1, _PERPLEXITY, _GREEDY = (
    "max logit difference",
    "mean KL",
    "top-1 agreement",
    "perplexity change",
    "equal greedy tokens",
)
LIMITS: dict[str, dict[str, float]] = {
    "exact": {_LOGITS: 1e-4, _GREEDY: 128},
    "half": {_LOGITS: 1e-2, _KL: 1e-4},
    "exact quantized": {_LOGITS: 1e-4},
    "shipped quantized": {_KL: 5e-3, _TOP1: 0.98, _PERPLEXITY: 0.005},
    # At a KL of 3e-3 the change of perplexity has a standard error of 0.4 % on 512 tokens.
    "quick": {_KL: 5e-3, _TOP1: 0.95, _PERPLEXITY: 0.01},
}
_AT_LEAST = frozenset({_TOP1, _GREEDY})
_STEPS = 32  # positions that are also computed one by one, on the cache
_CHUNK = 128  # positions in one call
_ROWS = 64  # positions whose logits are held in float64 at a time
_NUMPY_TOKENS = 48  # the float64 reference computes every score; a short text shows a fault


@dataclass(frozen=True)
class Row:
    """One measured value of one pair."""

    pair: str
    measure: str
    value: float
    limit: float

    @property
    def at_least(self) -> bool:
        """Whether the limit is a lower one."""
        return self.measure in _AT_LEAST

    @property
    def ok(self) -> bool:
        """Whether the limit holds; NaN never does."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Variant:
    """One exported graph and what it is held to."""

    label: str
    weights: str
    dialect: str
    limits: str  # key of LIMITS
    exact: bool = False
    kv: str = "float"  # as `runtime.folder.open_folder` has it


VARIANTS = (
    Variant("ONNX fp32", "fp32", "gqa", "exact"),
    Variant("ONNX fp32, standard ops", "fp32", "standard", "exact"),
    Variant("ONNX fp16", "fp16", "gqa", "half"),
    Variant("ONNX q4, parity graph", "q4", "gqa", "exact quantized", exact=True),
    Variant("ONNX q4", "q4", "gqa", "shipped quantized"),
    Variant("ONNX q4, quick graph", "q4", "gqa", "quick", kv="int8"),
    Variant("ONNX int8", "int8", "gqa", "shipped quantized"),
    Variant("ONNX int8, quick graph", "int8", "gqa", "quick", kv="int8"),
)


def parity(
    checkpoint: Checkpoint,
    ids: Sequence[int],
    variants: Sequence[Variant] = VARIANTS,
    started: Callable[[str], None] = lambda what: None,
) -> Iterator[Row]:
    """Compare the MLX model with float64 numpy and with each exported variant on `ids`.

    `started` is told what is about to run. Exports go to a temporary directory. Raises InputError
    when there are too few tokens to compare, or more than the context holds.
    """
    if len(ids) <= _STEPS:
        raise InputError(f"parity needs more than {_STEPS} tokens of text; found {len(ids)}")
    references = _References(checkpoint, ids)
    started("MLX against float64 numpy")
    yield _against_numpy(references.plain, ids)
    for variant in variants:
        started(variant.label)
        reference = references.of(variant)
        with tempfile.TemporaryDirectory(prefix="pippin-parity-") as folder:
            path = export_folder(
                checkpoint,
                Path(folder) / "model",
                weights=variant.weights,
                dialect=variant.dialect,
                exact=variant.exact,
            )
            engine = OrtEngine.from_folder(path, kv=variant.kv)
            pair = f"{variant.label} vs {reference.label}"
            measured = _measure(engine, reference, ids, LIMITS[variant.limits])
            yield from (
                Row(pair, measure, value, LIMITS[variant.limits][measure])
                for measure, value in measured.items()
            )


def text_ids(checkpoint: Checkpoint, text: Path | None, count: int) -> list[int]:
    """The first `count` token ids of a text file, or of `parity_text`.

    A checkpoint without a tokenizer gets random ids. Raises InputError when the file cannot be
    read as UTF-8.
    """
    if not checkpoint.tokenizer_json:
        if text is not None:
            raise InputError(f"{checkpoint.path} has no tokenizer to read {text} with")
        vocab_size = read_family(checkpoint.config).config.vocab_size
        return np.random.default_rng(0).integers(0, vocab_size, count).tolist()
    try:
        content = TEXT if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from error
    return checkpoint.tokenizer().encode(content)[:count]


@dataclass(frozen=True)
class _Reference:
    """The MLX engine that a pair is judged by, and its logits [L, V]."""

    label: str
    engine: MlxEngine
    logits: np.ndarray


class _References:
    """One MLX engine for each set of weights that the variants stand for, made when asked for."""

    def __init__(self, checkpoint: Checkpoint, ids: Sequence[int]):
        self._checkpoint, self._ids = checkpoint, ids
        self.plain = self._build("MLX fp32", load_decoder(checkpoint, mx.float32))
        self._quantized: dict[str, _Reference] = {}

    def of(self, variant: Variant) -> _Reference:
        if variant.weights in ("fp32", "fp16"):
            return self.plain
        if variant.weights not in self._quantized:
            self._quantized[variant.weights] = self._quantize(variant.weights)
        return self._quantized[variant.weights]

    def _quantize(self, weights: str) -> _Reference:
        """What the exporter quantizes, on MLX; a checkpoint that is quantized stays as it is."""
        decoder = load_decoder(self._checkpoint, mx.float32)
        before = _kinds(decoder)
        quantize_decoder(decoder, weights)
        if _kinds(decoder) == before:
            return replace(self.plain, label="MLX quantized")
        return self._build("MLX quantized", decoder)

    def _build(self, label: str, decoder: Decoder) -> _Reference:
        engine = MlxEngine(decoder, label, self._checkpoint.fingerprint)
        return _Reference(label, engine, logits(engine.open(), self._ids))


def _kinds(decoder: Decoder) -> list[tuple]:
    """The type of each layer, its bits and mode: equal lists, equal weights."""
    marks = ("bits", "mode")
    return [(type(m), *(getattr(m, mark, None) for mark in marks)) for m in decoder.modules()]


def logits(session: Session, ids: Sequence[int]) -> np.ndarray:
    """Logits of every position of `ids`, float32 [L, V], computed in chunks; where decoding has
    kernels of its own for few rows, by these.
    """
    size = session.verifiable(0, _CHUNK)
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    return np.concatenate([np.array(session.verify(chunk)) for chunk in chunks])


def stepwise_logits(session: Session, ids: Sequence[int]) -> np.ndarray:
    """Logits of the last positions, computed one by one on the cache of the rest, [_STEPS, V]."""
    session.prefill(ids[:-_STEPS])
    return np.stack([np.array(session.step(token)) for token in ids[-_STEPS:]])


def _against_numpy(reference: _Reference, ids: Sequence[int]) -> Row:
    decoder, short = reference.engine.decoder, np.array([ids[:_NUMPY_TOKENS]])
    caches = [NumpyCache() for _ in range(decoder.config.layers)]
    exact = decoder(NumpyOps(np.float64), short, caches)[0]
    value = _difference(reference.logits[: short.shape[1]], exact)
    return Row("MLX fp32 vs numpy float64", _LOGITS, value, LIMITS["exact"][_LOGITS])


def _measure(
    engine: Engine, reference: _Reference, ids: Sequence[int], wanted: Collection[str]
) -> dict[str, float]:
    """The `wanted` measures of `engine` against `reference`."""
    session = engine.open()
    ours = logits(session, ids)
    values = {}
    if _LOGITS in wanted:
        steps = stepwise_logits(engine.open(), ids)
        values[_LOGITS] = max(
            _difference(ours, reference.logits),
            _difference(steps, reference.logits[-_STEPS:]),
        )
    if not {_KL, _TOP1, _PERPLEXITY}.isdisjoint(wanted):
        values |= distances(ours, reference.logits, ids)
    if _GREEDY in wanted:
        prompt = ids[: -_STEPS if len(ids) < 2 * _STEPS else _STEPS]
        pairs = zip(_greedy(engine, prompt), _greedy(reference.engine, prompt), strict=True)
        values[_GREEDY] = float(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return {measure: values[measure] for measure in wanted}


def _greedy(engine: Engine, prompt: Sequence[int]) -> list[int]:
    session = engine.open()
    stream = session.decode(session.prefill(prompt), lambda logits, _: engine.xp.argmax(logits))
    tokens = list(islice(stream, int(LIMITS["exact"][_GREEDY])))
    stream.close()
    return tokens


def _difference(ours: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference of two sets of logits, relative to the largest reference logit."""
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


def distances(ours: np.ndarray, reference: np.ndarray, ids: Sequence[int]) -> dict[str, float]:
    """Mean KL (nats), top-1 agreement and relative change of perplexity; logits [L, V] of `ids`."""
    divergence, surprise = 0.0, np.zeros(2)
    following = np.asarray(ids[1:])
    for at in range(0, len(ids), _ROWS):
        p, q = (log_softmax(x[at : at + _ROWS]) for x in (reference, ours))
        divergence += float(np.sum(np.exp(p) * (p - q)))
        chosen = following[at : at + _ROWS]
        rows = np.arange(len(chosen))
        surprise += [-p[rows, chosen].sum(), -q[rows, chosen].sum()]
    surprise /= len(following)
    return {
        _KL: divergence / len(ids),
        _TOP1: float(np.mean(ours.argmax(axis=-1) == reference.argmax(axis=-1))),
        _PERPLEXITY: float(abs(np.exp(surprise[1] - surprise[0]) - 1.0)),
    }
