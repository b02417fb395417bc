"""One launch of the prefill kernel in the emulator, checked in every way."""

import mlx.core as mx
import numpy as np

from emulator import Launch, emulated
from pippin.kernels.prefill import prefill_attention
from pippin.kernels.quantized_prefill import quantized_prefill_attention

from .attention_cases import AttentionCase, assert_attention, assert_lse, build, build_quantized
from .prefill_bytes import assert_bytes, prefill_bytes, quantized_bytes

ORDERS = ("BKSD", "BSKD", "BKDS")  # of a cache's axes in memory


def check_prefill(case: AttentionCase, dtype: mx.Dtype = mx.float32) -> Launch:
    """Output and log-sum-exp are the reference's, and the bytes moved are those needed."""
    inputs = build(case, dtype)
    with emulated(seed=case.seed, max_threads=128) as report:
        out, lse = prefill_attention(
            inputs.q, inputs.k, inputs.v, case.spec, **inputs.arrays, lse=True
        )
    wanted = inputs.reference(case.spec)
    assert_attention(out, wanted[0])
    assert_lse(lse, wanted[1])
    assert_bytes(report.launches[0], prefill_bytes(case, dtype))
    return report.launches[0]


def check_quantized_prefill(
    case: AttentionCase, dtype: mx.Dtype, bits: int, group_size: int
) -> Launch:
    """As `check_prefill`. The output is near that of the cache dequantized in float64; the
    log-sum-exp is that of the cache dequantized to the type, as the kernel's tiles hold it."""
    inputs = build_quantized(case, dtype, bits, group_size)
    layout = {"bits": bits, "group_size": group_size}
    with emulated(seed=case.seed, max_threads=128) as report:
        out, lse = quantized_prefill_attention(
            inputs.q, inputs.k, inputs.v, case.spec, **layout, **inputs.arrays, lse=True
        )
    assert_attention(out, inputs.reference(case.spec)[0])
    inputs.wide = (inputs.wide[0], *(_rounded(x, dtype) for x in inputs.wide[1:]))
    wanted = inputs.reference(case.spec)
    assert_attention(out, wanted[0])
    assert_lse(lse, wanted[1])
    launch, needed = report.launches[0], quantized_bytes(case, dtype, bits, group_size)
    assert_bytes(launch, needed)
    for name in ("k_scales", "k_biases", "v_scales", "v_biases"):  # once for each word
        assert launch.traffic[name].read == needed[name[0]] // 4 * dtype.size
    return launch


def _rounded(x: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """float64 `x` as `dtype` holds it."""
    narrow = mx.array(x.astype(np.float32)).astype(dtype)
    return np.array(narrow.astype(mx.float32), np.float64)
