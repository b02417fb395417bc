"""MLX's own kernels for its affine 4- and 8-bit layout run right through the emulator."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import SKIP_REASON, find_clang
from emulator.mlx_headers import mlx_kernel, run

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)

BEFORE = "steel/gemm/gemm.h quantized_utils.h"
LAYOUTS = [(4, 32), (4, 64), (8, 64), (8, 128)]


def quantized(rows, columns, bits, group):
    """(words, scales, biases, the weights they stand for)."""
    weights = mx.random.normal((rows, columns), key=mx.random.key(bits * group))
    parts = mx.quantize(weights, group_size=group, bits=bits)
    back = mx.dequantize(*parts, group_size=group, bits=bits)
    return [np.array(part) for part in (*parts, back)]


@pytest.mark.parametrize(("bits", "group"), LAYOUTS)
def test_dequantize(bits, group):
    words, scales, biases, expected = quantized(4, 256, bits, group)
    out = np.zeros_like(expected)
    launch = run(
        mlx_kernel("quantized.h", f"affine_dequantize<float, {group}, {bits}>", (), BEFORE),
        {"w": words.view(np.uint8), "scales": scales, "biases": biases, "out": out},
        outputs=("out",),
        groups=(256 * bits // 8 // 32, 4, 1),
        threadgroup=(32, 1, 1),
    )
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)
    assert launch.traffic["w"].read == words.nbytes


def product_arguments(x, words, scales, biases, out):
    return {
        "w": words,
        "scales": scales,
        "biases": biases,
        "x": x,
        "y": out,
        "in_vec_size": np.int32(x.shape[1]),
        "out_vec_size": np.int32(out.shape[1]),
        "K": np.int32(x.shape[1]),
        "N": np.int32(out.shape[1]),
        "M": np.int32(x.shape[0]),
        "x_batch_ndims": np.int32(0),
        "w_batch_ndims": np.int32(0),
    }


@pytest.mark.parametrize("kernel", ["affine_qmv", "affine_qmv_fast"])
@pytest.mark.parametrize(("bits", "group"), LAYOUTS)
def test_matrix_times_vector(kernel, bits, group):
    columns = 512 if kernel == "affine_qmv_fast" else 384
    words, scales, biases, weights = quantized(16, columns, bits, group)
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
    out = np.zeros((2, 16), np.float32)
    launch = run(
        mlx_kernel("quantized.h", f"{kernel}<float, {group}, {bits}, false>", (), BEFORE),
        product_arguments(x, words, scales, biases, out),
        outputs=("y",),
        groups=(2, 2, 1),
        threadgroup=(32, 2, 1),
    )
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    np.testing.assert_allclose(out, expected, atol=2e-6 * np.abs(expected).max())
    assert launch.traffic["w"].read == 2 * words.nbytes  # once per row of x


def test_matrix_times_matrix():
    words, scales, biases, weights = quantized(64, 128, 4, 64)
    x = np.random.default_rng(0).standard_normal((40, 128)).astype(np.float32)
    out = np.zeros((40, 64), np.float32)
    run(
        mlx_kernel("quantized.h", "affine_qmm_t<float, 64, 4, true, false>", (), BEFORE),
        product_arguments(x, words, scales, biases, out),
        outputs=("y",),
        groups=(2, 2, 1),
        threadgroup=(32, 2, 2),
    )
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    np.testing.assert_allclose(out, expected, atol=2e-6 * np.abs(expected).max())
