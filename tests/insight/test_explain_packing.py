"""What a page holds of a layer: the top keys and weights of every query, whatever masks them."""

from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from pippin.apps.insight import attention
from pippin.apps.insight.packing import (
    LOG_FLOOR,
    MOST_BYTES,
    choose_layers,
    layer_bytes,
    pack_layer,
)
from pippin.apps.insight.trace import LayerTrace
from pippin.kernels.spec import AttentionSpec
from pippin.runtime.errors import InputError

HEADS, KV_HEADS, TOKENS, DIM, TOP = 6, 2, 40, 16, 5
KINDS = {
    "plain": {},
    "window": {"window": 3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": np.linspace(-1, 4, HEADS, dtype=np.float32)},
    "ALiBi": {"slopes": 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)},
}


def make_layer(window=None, softcap=None, sinks=None, slopes=None) -> LayerTrace:
    rng = np.random.default_rng(3)
    spec = AttentionSpec(
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        scale=DIM**-0.5,
        window=window,
        softcap=softcap,
    )
    q, k, v = (
        rng.standard_normal((heads, TOKENS, DIM)).astype(np.float32) * 1.5
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return LayerTrace(4, q, k, v, spec, sinks, slopes)


def numbers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), kind)


def in_steps(packed: dict[str, Any]) -> np.ndarray:
    return numbers(packed["steps"], "<u2") / 65535 * packed["most"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_can_give_back_what_was_read(kind: str) -> None:
    layer = make_layer(**KINDS[kind])
    packed = pack_layer(layer, TOP)
    keys = numbers(packed["keys"], "<u2").reshape(HEADS + 1, TOKENS, TOP)
    steps = numbers(packed["log_weights"], "<u2").reshape(keys.shape)
    logs = LOG_FLOOR * (1 - steps / 65535)
    lse = numbers(packed["lse"], "<f4").reshape(HEADS, TOKENS)
    wanted = attention.weights(layer, range(TOKENS))
    wanted = np.concatenate([wanted, wanted.mean(axis=0, keepdims=True)])
    for head, query in np.ndindex(HEADS + 1, TOKENS):
        seen = min(query + 1, layer.spec.window or TOKENS, TOP)
        order = np.argsort(-wanted[head, query], kind="stable")[:seen]
        held = steps[head, query] > 0
        assert held.sum() == seen
        assert keys[head, query, held].tolist() == order.tolist()
        found = np.exp(logs[head, query, held])
        assert found == pytest.approx(wanted[head, query, order], rel=2e-4)
        if head < HEADS:
            step = attention.step(layer, head, query)
            scores = logs[head, query, held] + lse[head, query]
            assert scores == pytest.approx(step.scores[order], abs=5e-4)
            at = head * TOKENS + query
            assert in_steps(packed["q_norms"])[at] == pytest.approx(step.q_norm, abs=1e-3)
            output = np.linalg.norm(step.output)
            assert in_steps(packed["output_norms"])[at] == pytest.approx(output, abs=1e-3)
            if kind == "sinks":
                assert in_steps(packed["sinks"])[at] == pytest.approx(step.sink_weight, abs=1e-4)
    k_norms = in_steps(packed["k_norms"]).reshape(KV_HEADS, TOKENS)
    assert k_norms == pytest.approx(np.linalg.norm(layer.k, axis=-1), abs=1e-3)
    assert packed["plain"] == (kind not in ("softcap", "ALiBi"))
    assert (packed["sinks"] is not None) == (kind == "sinks")


def test_weights_that_vanish_are_left_out() -> None:
    layer = make_layer(slopes=np.full(HEADS, 30.0, np.float32))
    packed = pack_layer(layer, TOP)
    steps = numbers(packed["log_weights"], "<u2").reshape(HEADS + 1, TOKENS, TOP)
    assert (steps[:, 20] > 0).sum(axis=-1).tolist() == [1] * (HEADS + 1)


def test_the_size_is_foreseen() -> None:
    packed = pack_layer(make_layer(), TOP)
    texts = [v["steps"] if isinstance(v, dict) else v for v in packed.values()]
    size = sum(len(text) for text in texts if isinstance(text, str) and len(text) > 100)
    assert size == pytest.approx(layer_bytes(HEADS, KV_HEADS, TOKENS, TOP), rel=0.01)


def test_layers_are_left_out_only_where_they_do_not_fit() -> None:
    assert choose_layers(None, 2, 12, MOST_BYTES // 12) == (list(range(12)), False)
    assert choose_layers([3, 1], 2, 12, 10) == ([1, 2, 3], True)
    for first in range(12):
        chosen, partly = choose_layers(None, first, 12, MOST_BYTES // 4)
        assert partly
        assert len(chosen) == len(set(chosen)) == 4
        assert first in chosen
        assert max(np.diff([-4, *chosen, 15])) <= 8
    assert choose_layers(None, 5, 12, MOST_BYTES)[0] == [5]
    for wanted, each in (([1, 2], MOST_BYTES // 2), (None, MOST_BYTES + 1)):
        with pytest.raises(InputError, match="give fewer with --layers"):
            choose_layers(wanted, 5, 12, each)
