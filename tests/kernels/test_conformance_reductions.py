"""MLX's own reductions over a row, from its shipped headers, run right through the emulator."""

import numpy as np
import pytest

from emulator import SKIP_REASON, find_clang
from emulator.mlx_headers import mlx_kernel, run

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(axis, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal((3, axis)) * 4).astype(dtype)


@pytest.mark.parametrize(
    ("kernel", "axis", "threads"),
    [
        ("softmax_single_row", 1, 32),
        ("softmax_single_row", 127, 32),
        ("softmax_single_row", 1000, 256),
        ("softmax_single_row", 4096, 1024),
        ("softmax_looped", 4097, 1024),
        ("softmax_looped", 9001, 1024),
    ],
)
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"), [("float", "f4", 2e-6), ("half", "f2", 2e-3)]
)
def test_softmax(kernel, axis, threads, kind, dtype, tolerance):
    x = rows(axis, dtype)
    out = np.zeros_like(x)
    run(
        mlx_kernel("softmax.h", f"{kernel}<{kind}, float>"),
        {"in": x, "out": out, "axis_size": np.int32(axis)},
        outputs=("out",),
        groups=(3, 1, 1),
        threadgroup=(threads, 1, 1),
    )
    expected = softmax(x.astype(np.float64))
    assert np.abs(out - expected).max() <= tolerance * expected.max()


@pytest.mark.parametrize("axis", [5, 1000, 4096])
def test_logsumexp(axis):
    x = rows(axis)
    out = np.zeros(3, np.float32)
    run(
        mlx_kernel("logsumexp.h", "logsumexp<float>"),
        {"in": x, "out": out, "axis_size": np.int32(axis)},
        outputs=("out",),
        groups=(3, 1, 1),
        threadgroup=(1024, 1, 1),
    )
    np.testing.assert_allclose(out, np.log(np.exp(x.astype(np.float64)).sum(1)), rtol=2e-6)


def test_cross_entropy():
    x, targets = rows(5000), np.array([7, 0, 4999], np.int32)
    out = np.zeros(3, np.float32)
    run(
        mlx_kernel("cross_entropy.h", "cross_entropy<float>"),
        {"in": x, "targets": targets, "out": out, "axis_size": np.int32(5000)},
        outputs=("out",),
        groups=(3, 1, 1),
        threadgroup=(1024, 1, 1),
    )
    wide = x.astype(np.float64)
    expected = np.log(np.exp(wide).sum(1)) - wide[np.arange(3), targets]
    np.testing.assert_allclose(out, expected, rtol=1e-5)
