"""Curves of distance against transformers' rotations and the papers' closed forms."""

import math

import numpy as np
import pytest
import torch

from pippin.apps.insight.position_curves import position_curves, rope_curve
from pippin.mlx_model.positions import RopeConfig
from pippin.runtime.errors import InputError

TRAINED, FURTHEST, HEAD_DIM, HEADS = 512, 2047, 32, 4
FACTOR = (FURTHEST + 1) / TRAINED
SETTINGS = {
    "RoPE": {"rope_type": "default"},
    "NTK": {"rope_type": "dynamic", "factor": 1.0},
    "YaRN": {
        "rope_type": "yarn",
        "factor": FACTOR,
        "original_max_position_embeddings": TRAINED,
    },
}


@pytest.fixture(scope="module")
def curves():
    return position_curves(TRAINED, FURTHEST, head_dim=HEAD_DIM, heads=HEADS)


@pytest.fixture(scope="module")
def by_scheme(curves):
    return {curve.scheme: curve for curve in curves.curves}


def torch_rotary(scheme):
    """The rotation by transformers, its cos and sin [S, D] for a text of the furthest distance."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=HEAD_DIM * HEADS,
        num_attention_heads=HEADS,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_theta": 10000.0, **SETTINGS[scheme]},
    )
    rotary = LlamaRotaryEmbedding(config)
    positions = torch.arange(FURTHEST + 1)[None]
    cos, sin = rotary(torch.zeros(1, 1, HEAD_DIM), positions)
    return rotary, cos[0], sin[0]


@pytest.mark.parametrize("scheme", SETTINGS)
def test_rotations_are_those_of_transformers(scheme, by_scheme):
    """The score of x with itself over all unit vectors x: the trace of the rotation over D."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    _, cos, sin = torch_rotary(scheme)
    units = torch.eye(HEAD_DIM)[:, None, None, :].expand(HEAD_DIM, 1, FURTHEST + 1, HEAD_DIM)
    turned, _ = apply_rotary_pos_emb(units, units, cos[None], sin[None])
    scores = (turned * turned[:, :, :1]).sum(-1).mean(dim=(0, 1)).numpy()  # with position 0
    np.testing.assert_allclose(by_scheme[scheme].values, scores, atol=2e-5)


def test_the_expectation_is_that_of_random_content(by_scheme):
    """A mean over many random x, rotated by the definition of the paper, as complex numbers."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((20_000, HEAD_DIM // 2, 2)) @ np.array([1, 1j])
    frequencies = 10000.0 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    for distance in (0, 3, 100, 2000):
        scores = (x * np.exp(1j * distance * frequencies) * x.conj()).real.sum(axis=1) / HEAD_DIM
        error = scores.std() / math.sqrt(len(scores))
        assert abs(by_scheme["RoPE"].values[distance] - scores.mean()) < 5 * error + 1e-4


def test_the_score_depends_on_distance_alone():
    rope = RopeConfig(base=10000.0, dims=HEAD_DIM)
    frequencies = 10000.0 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    for start in (0, 17, 300):
        angles = np.outer([start, start + 41], frequencies)
        score = (np.cos(angles).prod(axis=0) + np.sin(angles).prod(axis=0)).mean()
        assert rope_curve(rope, 50)[41] == pytest.approx(score, abs=1e-5)


def test_sinusoids_are_those_of_the_paper(by_scheme):
    width = HEADS * HEAD_DIM
    table = np.zeros((FURTHEST + 1, width))
    for i in range(width // 2):  # section 3.5, sines and cosines in turn
        angle = np.arange(FURTHEST + 1) / 10000 ** (2 * i / width)
        table[:, 2 * i], table[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
    values = by_scheme["sinusoidal"].values
    np.testing.assert_allclose(values, table @ table[0] / (width / 2), atol=1e-6)
    angles = 10000 ** (-np.arange(width // 2) / (width // 2))  # a token's
    unseen = angles * TRAINED < 2 * math.pi
    assert by_scheme["sinusoidal"].unseen_pairs == unseen.sum()
    # The same from any other place.
    far = table[200:] @ table[200] / (width / 2)
    np.testing.assert_allclose(values[: len(far)], far, atol=1e-6)


def test_alibi_is_that_of_transformers(by_scheme):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    bias = build_alibi_tensor(torch.ones(1, FURTHEST + 1), HEADS, torch.float32)  # by key
    theirs = bias.reshape(HEADS, FURTHEST + 1).numpy()
    for head in range(HEADS):
        ours = by_scheme[f"ALiBi, head {head}"].values
        # Bloom adds slope·key, which differs from −slope·distance by the same for all keys.
        np.testing.assert_allclose(ours[::-1] - ours[-1], theirs[head], rtol=1e-6)


def test_yarn_raises_scores_by_its_temperature(by_scheme):
    temperature = (0.1 * math.log(FACTOR) + 1) ** 2  # section 3.4, as q and k both have it
    assert by_scheme["YaRN"].values[0] == pytest.approx(temperature, rel=1e-6)
    assert by_scheme["RoPE"].values[0] == pytest.approx(1.0)


@pytest.mark.parametrize("scheme", SETTINGS)
def test_unseen_pairs_are_counted_by_their_angles(scheme, by_scheme):
    """From transformers' own frequencies: beyond all angles that training had."""
    seen, used = (
        torch_rotary(name)[0].inv_freq.numpy().astype(np.float64) for name in ("RoPE", scheme)
    )
    trained, now = seen * TRAINED, used * FURTHEST
    unseen = sum(t < 2 * math.pi and n > t for t, n in zip(trained, now, strict=True))
    assert by_scheme[scheme].unseen_pairs == unseen
    assert by_scheme[scheme].pairs == HEAD_DIM // 2


def test_stretching_leaves_fewer_unseen_pairs(by_scheme):
    counts = [by_scheme[scheme].unseen_pairs for scheme in ("YaRN", "NTK", "RoPE")]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_charts_hold_the_curves_from_distance_one_on(curves, by_scheme):
    for chart in curves.charts():
        assert chart.log_x
        assert not chart.log_y
        for series in chart.series:
            assert series.x[0] == 1
            assert series.x[-1] == FURTHEST
            assert TRAINED in series.x
            assert list(series.x) == sorted(set(series.x))
            values = by_scheme[series.name].values
            assert series.y == tuple(values[int(distance)] for distance in series.x)
    drawn = [series.name for chart in curves.charts() for series in chart.series]
    assert sorted(drawn) == sorted(by_scheme)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"trained": 1}, "at least 2"),
        ({"trained": 512, "furthest": 512}, "greater distance"),
        ({"head_dim": 31}, "even number"),
        ({"head_dim": 2}, "even number"),
        ({"heads": 0}, "at least 1 head"),
    ],
    ids=["short", "no-further", "odd", "one-pair", "no-heads"],
)
def test_impossible_curves_are_refused(given, expected):
    with pytest.raises(InputError, match=expected):
        position_curves(**given)
