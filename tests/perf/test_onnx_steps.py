"""What a decoding step hands to onnxruntime: the mask, which grows, and a place for the logits."""

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.ort_graph import CHUNK
from support.exported import random_ids
from support.graphs import Shape, write_folder

STEPS = 10
VOCAB = Shape().vocab


class Bindings:
    """Stands for an IO binding and writes down what is bound, and its bytes."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self.bound: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def bind_input(self, name: str, *place: Any) -> None:
        self._note(name, *place)
        self._binding.bind_input(name, *place)

    def bind_output(self, name: str, *place: Any) -> None:
        self._note(name, *place)
        self._binding.bind_output(name, *place)

    def _note(self, name: str, _device: str, _id: int, dtype: type, shape: tuple, _at: int) -> None:
        count = 1
        for size in shape:
            count *= size
        self.bound.append((name, count * dtype().itemsize))


class Runs:
    """Stands for an onnxruntime session and writes down what each run had been given anew."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.runs: list[list[tuple[str, int]]] = []

    def run_with_iobinding(self, bindings: Bindings) -> None:
        self.runs.append(bindings.bound[:])
        bindings.bound.clear()
        self._session.run_with_iobinding(bindings._binding)


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Any, Runs]:
    session = OrtEngine.from_folder(write_folder(tmp_path), threads=1).open(600)
    session._binding = Bindings(session._binding)
    runs = Runs(session._graph.session)
    session._graph = dataclasses.replace(session._graph, session=runs)
    return session, runs


def test_a_step_binds_the_mask_and_the_logits(watched: tuple[Any, Runs]) -> None:
    session, watch = watched
    tokens = session.decode(session.prefill(random_ids(40)), lambda logits, _: logits.argmax())
    list(islice(tokens, 2))  # the first step binds inputs of one token
    watch.runs.clear()
    list(islice(tokens, STEPS))
    assert len(watch.runs) == STEPS, "one run a token"
    for index, bound in enumerate(watch.runs):
        mask = 8 * (40 + 2 + index)
        assert sorted(bound) == [("attention_mask", mask), ("logits", 4 * VOCAB)]


def test_a_prompt_binds_its_caches_once(watched: tuple[Any, Runs]) -> None:
    session, watch = watched
    session.prefill(random_ids(2 * CHUNK + 3))
    assert len(watch.runs) == 3, "one run a chunk"
    first, *rest = ([name for name, _ in bound] for bound in watch.runs)
    assert sum("past" in name or "present" in name for name in first) == 4 * Shape().layers
    for names in rest:
        assert not [name for name in names if "past" in name or "present" in name]
        assert names.count("logits") == 1
    assert all(dict(bound)["logits"] == 4 * VOCAB for bound in watch.runs), "one row of logits"
