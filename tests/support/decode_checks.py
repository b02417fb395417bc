"""One launch of the decode kernels: right, and moving the bytes that the formulas say."""

import mlx.core as mx
import numpy as np

from emulator import Launch, Report, emulated
from pippin.kernels.decode import DecodePlan, decode_attention, decode_plan
from pippin.kernels.quantized_decode import quantized_decode_attention

from .attention_cases import AttentionCase, assert_attention, assert_lse, build, build_quantized

MAX_THREADS = 256


def plan_of(case: AttentionCase, dtype: mx.Dtype) -> DecodePlan:
    return decode_plan(case.spec, case.length, case.total, dtype.size)


def key_spans(case: AttentionCase) -> list[tuple[int, int]]:
    """(first, stop) of the keys that some row sees, sequence by sequence."""
    spans = []
    for b in range(case.batch):
        first = case.starts[b] if case.starts else 0
        stop = case.ends[b] if case.ends else case.total
        if case.spec.window is not None:
            first = max(first, stop - case.length - case.spec.window + 1)
        spans.append((first, max(first, stop)))
    return spans


def decode_bytes(case: AttentionCase, dtype: mx.Dtype) -> dict[str, int]:
    """Bytes by buffer, each counted once per threadgroup: K·D·size for each key of a span and
    tile; the queries once for each split."""
    spec, plan = case.spec, plan_of(case, dtype)
    keys = sum(stop - first for first, stop in key_spans(case)) * plan.tiles
    rows = case.batch * spec.heads * case.length
    cache = spec.kv_heads * keys * spec.head_dim * dtype.size
    written = rows * spec.head_dim * dtype.size
    stats = rows * 4
    if plan.splits > 1:
        written, stats = rows * plan.splits * spec.head_dim * 4, rows * plan.splits * 8
    queries = rows * plan.splits * spec.head_dim * dtype.size
    return {"q": queries, "k": cache, "v": cache, "out": written, "stats": stats}


def quantized_bytes(
    case: AttentionCase, dtype: mx.Dtype, factors: mx.Dtype, bits: int, group_size: int
) -> dict[str, int]:
    """`decode_bytes` with a cache of `bits` a value, and scales and biases of type `factors`."""
    plain = decode_bytes(case, dtype)
    values = plain["k"] // dtype.size
    parts = {"": values * bits // 8}
    parts |= dict.fromkeys(("_scales", "_biases"), values // group_size * factors.size)
    return plain | {name + part: size for name in "kv" for part, size in parts.items()}


def moved(launch: Launch) -> dict[str, int]:
    """Bytes by buffer as the formulas count them."""
    return {name: t.group_read + t.written for name, t in launch.traffic.items()}


def check_decode(case: AttentionCase, dtype: mx.Dtype = mx.float32) -> Launch:
    """The decode kernel does `case` right, and no byte more than it must."""
    inputs = build(case, dtype)
    with emulated(seed=case.seed, max_threads=MAX_THREADS) as report:
        out, lse = decode_attention(
            inputs.q, inputs.k, inputs.v, case.spec, **inputs.arrays, lse=True
        )
    _check(case, dtype, out, lse, inputs.reference(case.spec), report)
    return _check_bytes(report.launches[0], decode_bytes(case, dtype))


def check_quantized_decode(
    case: AttentionCase,
    dtype: mx.Dtype,
    bits: int,
    group_size: int,
    factors: mx.Dtype | None = None,
) -> Launch:
    """The same of the quantized kernel; scales and biases are held in `factors`, or q's type."""
    factors = factors or dtype
    inputs = build_quantized(case, dtype, bits, group_size)
    k, v = (
        (words, *(part.astype(factors) for part in parts)) for words, *parts in (inputs.k, inputs.v)
    )
    layout = {"bits": bits, "group_size": group_size}
    with emulated(seed=case.seed, max_threads=MAX_THREADS) as report:
        out, lse = quantized_decode_attention(
            inputs.q, k, v, case.spec, **layout, **inputs.arrays, lse=True
        )
    _check(case, dtype, out, lse, inputs.reference(case.spec), report)
    wanted = quantized_bytes(case, dtype, factors, bits, group_size)
    return _check_bytes(report.launches[0], wanted)


def _check(
    case: AttentionCase,
    dtype: mx.Dtype,
    out: mx.array,
    lse: mx.array,
    wanted: tuple[np.ndarray, np.ndarray],
    report: Report,
) -> None:
    assert_attention(out, wanted[0])
    assert_lse(lse, wanted[1])
    plan = plan_of(case, dtype)
    assert len(report.launches) == (1 if plan.splits == 1 else 2)
    if plan.splits > 1:
        traffic = report.launches[1].traffic
        read = {name: traffic[name].group_read for name in ("partial", "stats")}
        first = decode_bytes(case, dtype)
        assert read == {"partial": first["out"], "stats": first["stats"]}, f"bytes read {read}"


def _check_bytes(launch: Launch, wanted: dict[str, int]) -> Launch:
    found = {name: size for name, size in moved(launch).items() if name in wanted}
    assert found == wanted, f"bytes moved {found}, expected {wanted}"
    return launch
