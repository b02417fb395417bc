"""Prompt lookup on real sessions: past windows, around lengths that rotate otherwise, both engines.

Logits of one call with several tokens equal those of a call each up to rounding; random weights
leave no choice so close.
"""

import numpy as np
import pytest

from pippin.mlx_model.caches.window import MARGIN
from pippin.mlx_model.config import BlockConfig
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.positions import RopeConfig
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.sampling import SamplingParams
from support.drafts import Scripted, plain, speculated
from support.families import ROWS, Subject
from support.graphs import write_folder
from support.small_engine import small_engine

PARAMS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.7, seed=5, repetition_penalty=1.2, dry_multiplier=0.4),
}
EACH = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
DRAFTS = pytest.mark.parametrize("right", [0, 2, 99, None], ids=["wrong", "two", "right", "lookup"])


def check(engine, prompt, params, count, right, longest=7):
    """Both ways to `count` tokens and on from there; what was drafted and accepted."""
    wanted, reference = plain(engine, prompt, params, count)
    drafter = None if right is None else Scripted(wanted, right, engine.info.vocab_size)
    tokens, session, lookup = speculated(engine, prompt, params, count, longest, drafter)
    assert tokens == wanted
    assert session.length == reference.length == len(prompt) + count - 1
    ours, theirs = (np.array(s.step(wanted[-1])) for s in (session, reference))
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    return lookup.drafted_tokens, lookup.accepted_tokens


@pytest.fixture(scope="module")
def windowed() -> MlxEngine:
    rope = RopeConfig(base=1000.0, dims=16)
    return small_engine(BlockConfig(rope, 9), BlockConfig(rope))


@EACH
@DRAFTS
def test_while_windows_move_on(windowed, params, right):
    prompt = np.random.default_rng(3).integers(0, 61, 20).tolist()
    drafted, accepted = check(windowed, prompt, params, MARGIN + 60, right)
    if right is not None:
        assert drafted > 60
        assert (accepted > 0) == (right > 0)


@pytest.fixture(scope="module", params=["phi3-longrope", "llama-rope-dynamic"])
def switching(request, tmp_path_factory) -> Subject:
    row = next(row for row in ROWS if row.name == request.param)
    return Subject(row, tmp_path_factory.mktemp(row.name))


@EACH
@DRAFTS
@pytest.mark.parametrize("backend", ["mlx", "gqa", "standard"])
def test_around_the_length_that_rotates_otherwise(switching, backend, params, right):
    engine = switching.mlx if backend == "mlx" else switching.onnx(backend)
    prompt = switching.ids(switching.row.switch - 12)
    drafted, accepted = check(engine, prompt, params, 24, right)
    if right == 99:
        assert drafted == accepted > 5


def test_a_draft_ends_where_the_rotation_changes(switching):
    switch, grows = switching.row.switch, switching.row.grows
    for engine in (switching.mlx, switching.onnx("gqa")):
        session, context = engine.open(), engine.info.context
        assert session.verifiable(switch - 9, 5) == 5
        assert session.verifiable(switch - 3, 5) == 3
        assert session.verifiable(switch - 1, 5) == 1
        assert session.verifiable(switch, 5) == (1 if grows else 5)
        assert session.verifiable(context - 3, 5) == (1 if grows else 3)


@EACH
@DRAFTS
@pytest.mark.parametrize("dialect", ["gqa", "standard"])
def test_graphs(tmp_path, dialect, params, right):
    engine = OrtEngine.from_folder(write_folder(tmp_path, dialect=dialect), threads=1)
    prompt = np.random.default_rng(1).integers(0, 97, 30).tolist()
    drafted, _ = check(engine, prompt, params, 60, right)
    assert right is None or drafted > 20
