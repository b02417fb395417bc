"""The table of families and variants, and how a row of it is measured."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps
from pippin.runtime.ort_engine import OrtEngine

from .family_rows import classic, cohere_granite, gemma, llama_like, moe, phi_glm, qwen
from .family_rows.row import Row
from .tiny import make_tiny

ROWS: tuple[Row, ...] = (
    *llama_like.ROWS,
    *qwen.ROWS,
    *gemma.ROWS,
    *phi_glm.ROWS,
    *moe.ROWS,
    *classic.ROWS,
    *cohere_granite.ROWS,
)
TOLERANCE = 1e-4  # × max|logit|, DESIGN §9
LEAST_MARGIN = 5e-5  # between scores of experts, which float32 has to about 1e-5 at worst
WAYS = ("one call", "chunks", "steps")
_CHUNKS = (7, 1, 30, 2, 64)  # tokens of a call, over and over
_STEPS = 40  # tokens that are decoded one by one; what comes before them is prefilled
Part = tuple[int, Any]  # a call's last position, exclusive, and the logits of its last rows


class Subject:
    """A row's checkpoint, and all that computes with it; what is expensive is done once."""

    def __init__(self, row: Row, folder: Path):
        self.row = row
        self.tiny = make_tiny(folder / "checkpoint", row.kind, row.seed, **row.config)
        self._folder = folder
        # One cache a subject: it is gone with the subject.
        self.onnx, self.theirs = cache(self._onnx), cache(self._theirs)
        self.exact, self.ours = cache(self._exact), cache(self._ours)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return open_checkpoint(self.tiny.path)

    @cached_property
    def mlx(self) -> MlxEngine:
        decoder = load_decoder(self.checkpoint, mx.float32)
        return MlxEngine(decoder, self.row.name, self.checkpoint.fingerprint)

    def _onnx(self, dialect: str) -> OrtEngine:
        """The engine of the exported graph."""
        return OrtEngine.from_folder(self.export(dialect), threads=1)

    def export(self, dialect: str) -> Path:
        """The exported folder; raises InputError where the dialect cannot express the model."""
        return export_folder(
            self.checkpoint, self._folder / dialect, weights="fp32", dialect=dialect
        )

    def ids(self, length: int, seed: int = 0) -> list[int]:
        """Random tokens; those of a shorter sequence begin a longer one."""
        vocabulary = self.tiny.reference.config.get_text_config().vocab_size
        return np.random.default_rng(seed).integers(0, vocabulary, length).tolist()

    def _theirs(self, length: int) -> np.ndarray:
        """What transformers says in one call, [L, V]."""
        if self.row.grows:
            self.tiny.logits(self.ids(1))  # it keeps the rotation of the longest until a short one
        return self.tiny.logits(self.ids(length))

    def _exact(self, length: int) -> np.ndarray:
        """What the numpy interpreter says in float64, in two calls where it can, [L, V]."""
        ids, switch = np.array([self.ids(length)]), self.row.switch
        first = 2 * length // 3 if switch is None or length <= switch else 0
        decoder, ops = self.mlx.decoder, NumpyOps()
        caches = [NumpyCache() for _ in range(decoder.config.layers)]
        parts = [part for part in (ids[:, :first], ids[:, first:]) if part.size]
        return np.concatenate([decoder(ops, part, caches)[0] for part in parts])

    def _ours(self, length: int) -> np.ndarray:
        """What MLX says in one call, [L, V]."""
        return np.array(self.mlx.open().verify(self.ids(length)))

    def run(self, engine: Any, length: int, way: str) -> list[Part]:
        """What `engine` says in a new session, the tokens cut into calls in one of WAYS."""
        ids, session, parts, start = self.ids(length), engine.open(), [], 0
        if way == "one call":
            return [(length, session.verify(ids)), (length, engine.open().prefill(ids)[None])]
        if way == "steps":
            start = max(length - _STEPS, 0)
            parts = [(start, session.prefill(ids[:start])[None])] if start else []
            return parts + [(at + 1, session.step(ids[at])[None]) for at in range(start, length)]
        while start < length:
            end = min(start + _CHUNKS[len(parts) % len(_CHUNKS)], length)
            parts.append((end, session.verify(ids[start:end])))
            start = end
        return parts

    def error(self, parts: list[Part], reference: Callable[[int], np.ndarray]) -> float:
        """The largest difference from `reference` (`theirs`, `exact`, `ours`), relative to the
        largest logit there."""
        length, switch, grows = max(end for end, _ in parts), self.row.switch, self.row.grows
        found, wanted = [], []
        for end, rows in parts:
            # What came before the switch is what a sequence says that never reaches it.
            short = switch and end <= switch < length
            whole = reference(switch if short else end if grows else length)
            found.append(np.array(rows))
            wanted.append(whole[end - len(rows) : end])
        return error(np.concatenate(found), np.concatenate(wanted))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference relative to the largest logit."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def rollback_error(engine: Any, ids: Sequence[int], other: Sequence[int], length: int) -> float:
    """How far `other` after a rollback from all of `ids` to `length` is from never having gone."""
    gone = engine.open()
    gone.verify(ids)
    gone.rollback(length)
    never = engine.open()
    if length:
        never.prefill(ids[:length])
    assert gone.length == never.length == length
    found, wanted = (
        [np.array(session.verify(other[:-2])), *(np.array(session.step(t)) for t in other[-2:])]
        for session in (gone, never)
    )
    return error(np.vstack(found), np.vstack(wanted))


def worst_rollback(subject: Subject, engine: Any) -> tuple[float, int]:
    """The worst `rollback_error` from the row's longest sequence, and the length it was at."""
    longest = max(subject.row.lengths)
    ids, other = subject.ids(longest), subject.ids(8, seed=1)
    room = engine.info.context - len(other)
    lengths = {min(length, room) for length in (0, *subject.row.lengths, longest - 1)}
    return max(
        (rollback_error(engine, ids, other, length), length)
        for length in lengths
        if 0 <= length < longest
    )


def greedy(engine: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` likeliest tokens, one after the other."""
    session = engine.open()
    tokens = [int(np.array(session.prefill(prompt)).argmax())]
    while len(tokens) < count:
        tokens.append(int(np.array(session.step(tokens[-1])).argmax()))
    return tokens
