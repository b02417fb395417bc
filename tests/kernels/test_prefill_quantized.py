"""The prefill tile kernel on quantized keys and values, run by the emulator."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import SKIP_REASON, find_clang
from pippin.kernels.prefill import tile_bytes, unsupported
from pippin.kernels.spec import AttentionSpec
from support.attention_cases import TOLERANCE, AttentionCase, attention_cases
from support.prefill_checks import ORDERS, check_quantized_prefill

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
DTYPES = list(TOLERANCE)
PLAIN = AttentionSpec(4, 2, 64, 0.125)
LAYOUTS = [  # D, bits, group
    (64, 8, 32),
    (64, 4, 64),
    (96, 4, 32),
    (128, 4, 128),
    (128, 8, 128),
    (192, 8, 64),
    (256, 4, 128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64)])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_type_at_any_shape(dtype, bits, group_size, data):
    case = data.draw(attention_cases(head_dim=64, orders=ORDERS))
    check_quantized_prefill(case, dtype, bits, group_size)


@pytest.mark.parametrize(
    ("head_dim", "bits", "group_size", "dtype"),
    [
        (*layout, dtype)
        for layout in LAYOUTS
        for dtype in DTYPES
        if not unsupported(PLAIN, dtype, layout[0], 45, 83)
    ],
    ids=str,
)
def test_every_layout_with_every_feature(head_dim, bits, group_size, dtype):
    spec = AttentionSpec(6, 2, head_dim, head_dim**-0.5, window=37, softcap=2.0)
    case = AttentionCase(
        spec, 2, 45, 83, sinks=True, slopes=True, starts=(0, 30), ends=(83, 71), margin=3
    )
    launch = check_quantized_prefill(case, dtype, bits, group_size)
    assert launch.threadgroup_bytes == tile_bytes(dtype, head_dim)


def test_the_cache_is_never_dequantized_to_memory():
    """One launch, and it writes the output alone."""
    case = AttentionCase(PLAIN, 1, 40, 200)
    launch = check_quantized_prefill(case, mx.float16, 4, 64)
    assert {name for name, traffic in launch.traffic.items() if traffic.written} == {"out", "lse"}
