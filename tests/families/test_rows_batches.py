"""Every family and variant in a batch: each sequence says what one call says."""

import numpy as np
import pytest

from support.families import ROWS, TOLERANCE, error

CASES = [(row, way) for row in ROWS for way in ("mlx", *row.dialects)]
STEPS = 6


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_a_batch_says_what_one_call_says(case, subject_of):
    row, way = case
    subject = subject_of(row)
    engine = subject.mlx if way == "mlx" else subject.onnx(way)
    longest = min(*(length for length in row.lengths if length > 2 * STEPS), row.switch or 512)
    ids = subject.ids(longest)
    wanted = subject.ours(longest)
    batch = engine.open_batch(3, longest)
    starts = [longest - STEPS, 1, longest // 2]
    sessions = [batch.open() for _ in starts]
    for session, start in zip(sessions, starts, strict=True):
        session.prefill(ids[:start])
    found, right = [], []
    for step in range(STEPS):
        chosen = [sessions[1:], sessions, sessions[::-2]][step % 3]
        places = [session.length for session in chosen]
        found.append(np.array(batch.step(chosen, [ids[place] for place in places])))
        right.append(wanted[places])
    assert error(np.concatenate(found), np.concatenate(right)) <= TOLERANCE
