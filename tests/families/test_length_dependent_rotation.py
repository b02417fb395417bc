"""Models that rotate longer sequences otherwise: what sessions do where that begins.

How they prefill, step and roll back there is tested with all rows; here is what those tests do not
do: decode, fork, save and restore.
"""

import mlx.core as mx
import numpy as np
import pytest

from support.families import ROWS, TOLERANCE, error

MLX = "MLX"
CASES = [(row, way) for row in ROWS if row.switch for way in (MLX, *row.dialects)]


def name(case) -> str:
    return f"{case[0].name}-{case[1]}"


@pytest.fixture(scope="module", params=CASES, ids=name)
def case(request, subject_of):
    """A subject and an engine of it."""
    row, way = request.param
    subject = subject_of(row)
    return subject, subject.mlx if way == MLX else subject.onnx(way)


def likeliest(logits, index):
    """The token to go on with, in the arrays of the engine."""
    return mx.argmax(logits) if isinstance(logits, mx.array) else np.argmax(logits)


def test_decoding_across_the_switch_chooses_what_one_call_says(case):
    subject, engine = case
    prompt, tokens = subject.ids(subject.row.switch - 2), []
    session = engine.open()
    for token in session.decode(session.prefill(prompt), likeliest):
        tokens.append(int(token))
        if len(tokens) == 6:
            break
    for count, token in enumerate(tokens):
        whole = np.array(engine.open().prefill([*prompt, *tokens[:count]]))
        assert token == whole.argmax(), f"after {len(prompt) + count} tokens"


@pytest.mark.parametrize("kept", [-4, 0, 1, 4], ids=lambda kept: f"switch{kept:+}")
def test_saved_after_a_rollback_and_restored_is_never_having_gone_ahead(case, kept, tmp_path):
    subject, engine = case
    switch = subject.row.switch
    ids, kept = subject.ids(switch + 8), switch + kept
    session = engine.open()
    session.prefill(ids)
    session.rollback(kept)
    session.save(tmp_path / "cache", ids[:kept])
    restored, tokens = engine.restore(tmp_path / "cache")
    assert tokens == ids[:kept]
    wanted = np.array(engine.open().verify(ids[: kept + 2]))[-2:]
    for resumed in (restored, session):
        assert error(np.array(resumed.verify(ids[kept : kept + 2])), wanted) <= TOLERANCE


def test_a_fork_goes_its_own_way_across_the_switch(case):
    subject, engine = case
    switch = subject.row.switch
    ids, session = subject.ids(switch + 3), engine.open()
    session.prefill(ids[: switch - 1])
    fork = session.fork()
    fork.verify(ids[switch - 1 :])
    wanted = np.array(engine.open().prefill(ids[:switch]))
    assert error(np.array(session.step(ids[switch - 1])), wanted) <= TOLERANCE
    wanted = np.array(engine.open().prefill([*ids, 5]))
    assert error(np.array(fork.step(5)), wanted) <= TOLERANCE
