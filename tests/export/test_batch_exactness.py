"""With int8 products and an int8 cache, who is beside a sequence changes not a bit of its logits.

So a reply is the same alone and in any company, greedy and sampled.
"""

import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.runtime.ort_batch import OrtBatch
from pippin.runtime.ort_engine import OrtEngine
from support.exported import CONTEXT, random_ids, tiny_checkpoint

LENGTHS = [3, 40, 1, 100, 17, 64, 31, 33]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    place = tmp_path_factory.mktemp("folder")
    checkpoint = tiny_checkpoint(place / "tiny")
    folder = export_folder(checkpoint, place / "out", context=CONTEXT, weights="q4", kv="int8")
    return OrtEngine.from_folder(folder, threads=2)


def test_logits_are_the_same_bits_alone_and_in_any_company(engine):
    batch = engine.open_batch(len(LENGTHS), CONTEXT)
    assert type(batch) is OrtBatch
    pairs = [(batch.open(), engine.open()) for _ in LENGTHS]
    for seed, (pair, length) in enumerate(zip(pairs, LENGTHS, strict=True)):
        for session in pair:
            session.prefill(random_ids(length, seed=seed))
    rng = np.random.default_rng(0)
    for step in range(24):
        size = len(pairs) if step % 2 else rng.integers(1, len(pairs) + 1)
        chosen = [pairs[index] for index in rng.permutation(len(pairs))[:size]]
        tokens = random_ids(size, seed=step)
        rows = batch.step([session for session, _ in chosen], tokens)
        for row, (_, lone), token in zip(rows, chosen, tokens, strict=True):
            np.testing.assert_array_equal(row, lone.step(token))
