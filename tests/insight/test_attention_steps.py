"""Weights, steps, shares and top keys against the float64 reference, on random operands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, emulated, find_clang
from pippin.apps.insight import attention
from pippin.apps.insight.mlx_trace import metal_top_keys
from pippin.apps.insight.trace import LayerTrace
from pippin.kernels.dispatch import VARIABLE
from pippin.kernels.reference import (
    attention_and_lse,
    attention_statistics_reference,
    masked_scores,
)
from pippin.kernels.spec import AttentionSpec

TOLERANCE = 1e-5


@st.composite
def layers(draw: st.DrawFn) -> LayerTrace:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim, total = draw(st.sampled_from([4, 8])), draw(st.integers(1, 24))
    heads = kv_heads * group
    spec = AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=draw(st.sampled_from([0.25, 1.0])),
        window=draw(st.none() | st.integers(1, 9)),
        softcap=draw(st.none() | st.sampled_from([2.0, 30.0])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return LayerTrace(
        layer=0,
        q=normal(heads, total, head_dim),
        k=normal(kv_heads, total, head_dim),
        v=normal(kv_heads, total, head_dim),
        spec=spec,
        sinks=draw(st.none() | st.just(normal(heads))),
        slopes=draw(st.none() | st.just(np.abs(normal(heads)))),
    )


def wide(layer: LayerTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """q, k, v [1, ·, S, D] and slopes, in float64."""
    parts = (array[None].astype(np.float64) for array in (layer.q, layer.k, layer.v))
    return (*parts, {} if layer.slopes is None else {"slopes": layer.slopes.astype(np.float64)})


def reference(layer: LayerTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights [H, S, S], outputs [H, S, D] and what sinks take [H, S]."""
    q, k, v, slopes = wide(layer)
    sinks = None if layer.sinks is None else layer.sinks.astype(np.float64)
    out, lse = attention_and_lse(q, k, v, layer.spec, sinks=sinks, **slopes)
    weights = np.exp(masked_scores(q, k, layer.spec, **slopes) - lse[..., None])
    taken = np.zeros_like(lse[0]) if sinks is None else np.exp(sinks[:, None] - lse[0])
    return weights[0], out[0], taken


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few queries at a time, so that there is more than one block."""
    monkeypatch.setattr(attention, "_SCORES", 300)


@settings(max_examples=60, deadline=None)
@given(layer=layers(), data=st.data())
def test_weights_outputs_and_steps(layer: LayerTrace, data: st.DataObject) -> None:
    total = layer.q.shape[1]
    queries = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=8))
    weights, outputs, taken = reference(layer)
    np.testing.assert_allclose(
        attention.weights(layer, queries), weights[:, queries], atol=TOLERANCE
    )
    np.testing.assert_allclose(
        attention.output(layer, queries), outputs[:, queries], atol=TOLERANCE
    )
    query, head = queries[0], data.draw(st.integers(0, layer.spec.heads - 1))
    step = attention.step(layer, head, query)
    np.testing.assert_allclose(step.weights, weights[head, query], atol=TOLERANCE)
    np.testing.assert_allclose(step.output, outputs[head, query], atol=TOLERANCE)
    np.testing.assert_allclose(step.sink_weight, taken[head, query], atol=TOLERANCE)
    assert step.seen.tolist() == (weights[head, query] > 0).tolist()
    assert not step.weights[~step.seen].any()


@settings(max_examples=60, deadline=None)
@given(layer=layers(), data=st.data())
def test_a_step_shows_every_stage(layer: LayerTrace, data: st.DataObject) -> None:
    q, k, v, slopes = wide(layer)
    spec, total = layer.spec, layer.q.shape[1]
    head, query = data.draw(st.integers(0, spec.heads - 1)), data.draw(st.integers(0, total - 1))
    shared = head * spec.kv_heads // spec.heads
    step = attention.step(layer, head, query)
    products = (q[0, head, query] * k[0, shared]).sum(-1)
    np.testing.assert_allclose(step.products, products, atol=TOLERANCE)
    np.testing.assert_allclose(step.scaled, products * spec.scale, atol=TOLERANCE)
    scores = masked_scores(q, k, spec, **slopes)[0, head, query]
    np.testing.assert_allclose(step.scores[step.seen], scores[step.seen], atol=TOLERANCE)
    for norms, rows in ((step.k_norms, k[0, shared]), (step.v_norms, v[0, shared])):
        np.testing.assert_allclose(norms, np.sqrt((rows**2).sum(-1)), rtol=1e-6)
    np.testing.assert_array_equal(step.q, layer.q[head, query])
    np.testing.assert_allclose(step.q_norm, np.sqrt((q[0, head, query] ** 2).sum()), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(layer=layers(), count=st.integers(1, 16))
def test_top_keys(layer: LayerTrace, count: int) -> None:
    """By numpy and by the statistics of the kernels, against float64."""
    q, k, v, slopes = wide(layer)
    sinks = None if layer.sinks is None else layer.sinks.astype(np.float64)
    lse = attention_and_lse(q, k, v, layer.spec, sinks=sinks, **slopes)[1]
    _, _, ids, wanted = attention_statistics_reference(q, k, lse, layer.spec, top_k=count, **slopes)
    weights = reference(layer)[0]
    for found, values in (attention.top_keys(layer, count), metal_top_keys(layer, count)):
        np.testing.assert_allclose(values, wanted[0], atol=TOLERANCE)
        assert ((found < 0) == (ids[0] < 0)).all()
        named = np.take_along_axis(weights, np.maximum(found, 0), axis=-1)
        np.testing.assert_allclose(np.where(found < 0, 0, named), wanted[0], atol=TOLERANCE)
        rows = np.sort(found, axis=-1)
        assert not ((rows[..., 1:] == rows[..., :-1]) & (rows[..., 1:] >= 0)).any()
    some = list(range(0, layer.q.shape[1], 2))
    for part, whole in zip(
        attention.top_keys(layer, count, some), attention.top_keys(layer, count), strict=True
    ):
        np.testing.assert_allclose(part, whole[:, some], atol=TOLERANCE)


def test_of_equal_weights_the_lower_id_is_first() -> None:
    alike = np.ones((1, 12, 4), np.float32)
    layer = LayerTrace(0, alike, alike, alike, AttentionSpec(1, 1, 4, 0.5), None, None)
    for ids, weights in (attention.top_keys(layer, 3), metal_top_keys(layer, 3)):
        assert ids[0, :3].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert ids[0, 11].tolist() == [0, 1, 2]
        np.testing.assert_allclose(weights[0, 11], [1 / 12] * 3, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(layer=layers(), data=st.data())
def test_shares_of_groups(layer: LayerTrace, data: st.DataObject) -> None:
    total = layer.q.shape[1]
    groups = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=total, max_size=total)))
    queries = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=8))
    found = attention.mass(layer, groups, queries)
    weights, _, taken = (array[:, queries] for array in reference(layer))
    assert found.groups.shape[-1] == groups.max() + 1
    for group in range(groups.max() + 1):
        wanted = weights[..., 1:][..., groups[1:] == group].sum(-1)
        np.testing.assert_allclose(found.groups[..., group], wanted, atol=TOLERANCE)
    np.testing.assert_allclose(found.first, weights[..., 0], atol=TOLERANCE)
    np.testing.assert_allclose(found.sinks, taken, atol=TOLERANCE)
    rest = weights[..., 1:][..., groups[1:] < 0].sum(-1)
    whole = found.groups.sum(-1) + found.first + found.sinks + rest
    np.testing.assert_allclose(whole, 1, atol=TOLERANCE)


def test_heads_and_queries_that_there_are_none_of() -> None:
    ones = np.ones((2, 3, 4), np.float32)
    layer = LayerTrace(0, ones, ones, ones, AttentionSpec(2, 2, 4, 0.5), None, None)
    for head, query in ((2, 0), (-1, 0), (0, 3), (0, -1)):
        with pytest.raises(IndexError):
            attention.step(layer, head, query)
    for queries in ([3], [-1, 0]):
        with pytest.raises(IndexError):
            attention.weights(layer, queries)
    with pytest.raises(ValueError, match="one is needed for each"):
        attention.mass(layer, [0, 1])


def test_the_kernels_are_asked_where_there_is_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 20, 4)).astype(np.float32) for _ in range(3))
    layer = LayerTrace(0, q, k, v, AttentionSpec(2, 2, 4, 0.5), None, None)
    wanted = attention.top_keys(layer, 3)
    monkeypatch.setattr(attention, "_on_metal", lambda: True)
    monkeypatch.setattr(attention, "_top", None)  # numpy's way is closed
    for found, same in zip(attention.top_keys(layer, 3), wanted, strict=True):
        np.testing.assert_allclose(found, same, atol=TOLERANCE)
    with pytest.raises(TypeError):
        attention.top_keys(layer, 17)


@pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
def test_top_keys_by_the_kernels_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(h, 40, 64)).astype(np.float32) for h in (2, 1, 1))
    spec = AttentionSpec(2, 1, 64, 0.125, window=33, softcap=5.0)
    sinks, slopes = np.array([0.5, -1.0], np.float32), np.array([0.25, 0.03], np.float32)
    layer = LayerTrace(0, q, k, v, spec, sinks, slopes)
    wanted = attention.top_keys(layer, 4)
    monkeypatch.setenv(VARIABLE, "kernels")
    with emulated(max_threads=256) as report:
        ids, weights = metal_top_keys(layer, 4)
    assert len(report.of("query_statistics")) == 1
    np.testing.assert_allclose(weights, wanted[1], atol=TOLERANCE)
    np.testing.assert_array_equal(ids, wanted[0])


def test_a_windows_block_has_the_windows_keys_alone() -> None:
    ones = np.ones((1, 400, 4), np.float32)
    layer = LayerTrace(0, ones, ones, ones, AttentionSpec(1, 1, 4, 0.5, window=7), None, None)
    sizes = [block.weights.shape for block in attention.blocks(layer)]
    assert max(keys - count for _, count, keys in sizes) == 6
    wider = replace(layer, spec=replace(layer.spec, window=None))
    assert max(keys for *_, keys in (b.weights.shape for b in attention.blocks(wider))) == 400
