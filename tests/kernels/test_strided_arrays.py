"""Sinks, slopes, starts and ends may be slices with strides of their own."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import SKIP_REASON, emulate, find_clang
from pippin.kernels.decode import decode_attention
from pippin.kernels.prefill import prefill_attention
from pippin.kernels.reference import attention_reference
from pippin.kernels.spec import AttentionSpec

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)


@pytest.mark.parametrize("compute", [prefill_attention, decode_attention])
def test_strided_arrays_are_read_by_element(compute):
    spec = AttentionSpec(4, 2, 64, 0.125)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((3, 4, 5, 64)).astype(np.float32)
    k, v = rng.standard_normal((2, 3, 2, 40, 64)).astype(np.float32)
    wide = {
        "sinks": rng.standard_normal(8).astype(np.float32),
        "slopes": rng.random(8).astype(np.float32),
        "starts": np.array([0, 30, 3, 30, 7, 30], np.int32),
        "ends": np.array([40, 1, 33, 1, 21, 1], np.int32),
    }
    strided = {name: mx.array(array)[::2] for name, array in wide.items()}
    outputs, _ = emulate(
        lambda q, k, v: compute(q, k, v, spec, **strided), *map(mx.array, (q, k, v))
    )
    wanted = attention_reference(q, k, v, spec, **{n: a[::2] for n, a in wide.items()})
    np.testing.assert_allclose(outputs[0], wanted, atol=2e-6)
