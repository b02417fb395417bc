"""Random attention problems, their float64 reference, and how close a kernel must come to it."""

from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from pippin.kernels.reference import attention_and_lse
from pippin.kernels.spec import AttentionSpec

# Of the largest magnitude in the output row: fp32 2e-6, else two units in the last place of the
# type, whose unit at 1 is 2^-10 or 2^-7.
TOLERANCE = {mx.float32: 2e-6, mx.float16: 2 * 2.0**-10, mx.bfloat16: 2 * 2.0**-7}
LSE_TOLERANCE = 2e-6  # of max(1, |lse|): always in float32


@dataclass(frozen=True)
class AttentionCase:
    """One problem; its numbers follow from the seed."""

    spec: AttentionSpec
    batch: int  # B
    length: int  # L
    total: int  # S
    sinks: bool = False
    slopes: bool = False
    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    margin: int = 0  # keys that the cache holds before and after the S given ones
    order: str = "BKSD"  # of the cache's axes in memory, the last the fastest
    seed: int = 0


@dataclass
class AttentionInputs:
    """The arrays of a case: for a kernel in its type, for the reference in float64."""

    q: mx.array  # [B, H, L, D]
    k: mx.array | tuple[mx.array, ...]  # [B, K, S, D], or quantized; a view into a longer cache
    v: mx.array | tuple[mx.array, ...]
    arrays: dict[str, mx.array]  # sinks, slopes, starts, ends: those the case has
    wide: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)

    def reference(self, spec: AttentionSpec) -> tuple[np.ndarray, np.ndarray]:
        """Output [B, H, L, D] and log-sum-exp [B, H, L] in float64."""
        given = {name: np.array(array) for name, array in self.arrays.items()}
        for name in given.keys() & {"sinks", "slopes"}:
            given[name] = given[name].astype(np.float64)
        return attention_and_lse(*self.wide, spec, **given)


def build(case: AttentionCase, dtype: mx.Dtype = mx.float32) -> AttentionInputs:
    """Standard normal q, k, v. Cache rows that belong to no key (margins; outside start..end) are
    NaN for the kernel: whoever lets them in is found out."""
    spec = case.spec
    rng = np.random.default_rng(case.seed)
    q = _rounded(rng.standard_normal((case.batch, spec.heads, case.length, spec.head_dim)), dtype)
    shape = (case.batch, spec.kv_heads, case.total, spec.head_dim)
    k, v = (_rounded(rng.standard_normal(shape), dtype) for _ in "kv")
    arrays = {}
    if case.sinks:
        arrays["sinks"] = mx.array(rng.standard_normal(spec.heads).astype(np.float32))
    if case.slopes:
        arrays["slopes"] = mx.array(2.0 ** -(8 * np.arange(1, spec.heads + 1) / spec.heads))
    for name, bounds in (("starts", case.starts), ("ends", case.ends)):
        if bounds is not None:
            arrays[name] = mx.array(bounds, mx.int32)
    return AttentionInputs(
        q=mx.array(q).astype(dtype),
        k=_cache(k, case, dtype),
        v=_cache(v, case, dtype),
        arrays=arrays,
        wide=(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)),
    )


def build_quantized(
    case: AttentionCase, dtype: mx.Dtype, bits: int, group_size: int
) -> AttentionInputs:
    """`build`, with k and v as (words, scales, biases) of `mx.quantize`; the reference has them
    dequantized in float64. Cache rows without a key have scales and biases of NaN."""
    inputs = build(replace(case, starts=None, ends=None, margin=0), dtype)
    (inputs.k, k), (inputs.v, v) = (
        _quantized(x, case, bits, group_size) for x in (inputs.k, inputs.v)
    )
    inputs.wide = (inputs.wide[0], k, v)
    inputs.arrays = build(case, dtype).arrays
    return inputs


def key_rows(case: AttentionCase) -> np.ndarray:
    """bool [B, S]: start <= j < end."""
    keys = np.arange(case.total)
    starts = np.zeros(case.batch) if case.starts is None else np.array(case.starts)
    ends = np.full(case.batch, case.total) if case.ends is None else np.array(case.ends)
    return (keys >= starts[:, None]) & (keys < ends[:, None])


def assert_attention(out: mx.array, wanted: np.ndarray, slack: float = 1.0) -> None:
    """`out` [..., D] is within its type's tolerance of the float64 `wanted`; 0 is exact.

    `slack` multiplies the tolerance, for what is not held to that of the kernels.
    """
    got = np.array(out.astype(mx.float32), np.float64)
    scale = np.abs(wanted).max(axis=-1, keepdims=True)
    error = np.abs(got - wanted)
    tolerance = slack * TOLERANCE[out.dtype]
    allowed = tolerance * scale
    worst = np.nanmax(error / np.where(scale == 0, 1, scale)) if error.size else 0
    assert (error <= allowed).all(), (
        f"off by {worst:.3g} of the row's maximum, {tolerance:.3g} allowed;"
        f" {np.isnan(got).sum()} NaN"
    )


def assert_lse(lse: mx.array, wanted: np.ndarray) -> None:
    """`lse` float32 is near the float64 `wanted`; −inf is exact."""
    assert lse.dtype == mx.float32
    got = np.array(lse, np.float64)
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    got, wanted = got[finite], wanted[finite]
    error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
    assert (error <= LSE_TOLERANCE).all(), f"lse off by {error.max():.3g}"


@st.composite
def attention_cases(
    draw: st.DrawFn,
    *,
    head_dim: int,
    softcap: float | None = None,
    slopes: bool = False,
    max_length: int = 80,
    max_total: int = 150,
    max_batch: int = 5,
    max_group: int = 16,
    orders: tuple[str, ...] = ("BKSD",),
) -> AttentionCase:
    """Shapes that kernels get wrong: odd lengths, S ≪ L and S ≫ L, W of 1 and above S, one key,
    rows that see nothing, ragged starts and ends, cache views. Head counts shrink as B grows, so
    that a case stays small. D, softcap and ALiBi are the caller's: each is another compiled kernel.
    """
    length, total = draw(_sizes(max_length)), draw(_sizes(max_total))
    batch = draw(st.integers(1, max_batch))
    group = draw(st.integers(1, max(1, max_group // batch)))
    kv_heads = draw(st.integers(1, max(1, 4 // (batch * group) + 1)))
    causal = draw(st.booleans())
    window = draw(st.none() | st.sampled_from([1, total + 1]) | _sizes(total)) if causal else None
    spec = AttentionSpec(
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        causal=causal,
        window=window,
        softcap=softcap,
    )
    bound = st.integers(0, total)
    bounds = st.none() | st.tuples(*[bound] * batch)
    return AttentionCase(
        spec=spec,
        batch=batch,
        length=length,
        total=total,
        sinks=draw(st.booleans()),
        slopes=slopes,
        starts=draw(bounds),
        ends=draw(bounds),
        margin=draw(st.integers(0, 3)),
        order=draw(st.sampled_from(orders)),
        seed=draw(st.integers(0, 999)),
    )


def _sizes(most: int) -> st.SearchStrategy[int]:
    """1 to `most`, with the edges of 8, 16 and 32 wide blocks more often."""
    edges = [n for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65) if n <= most]
    return st.sampled_from(edges) | st.integers(1, most)


def _rounded(x: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """`x` in float32, with values that `dtype` holds exactly."""
    return np.array(mx.array(x.astype(np.float32)).astype(dtype).astype(mx.float32))


def _cache(x: np.ndarray, case: AttentionCase, dtype: mx.Dtype) -> mx.array:
    """x [B, K, S, …] as a view into a longer cache, NaN (or all bits set) where no key stands."""
    nothing = np.float32(np.nan) if x.dtype == np.float32 else np.iinfo(x.dtype).max
    x = np.where(key_rows(case)[:, None, :, None], x, nothing).astype(x.dtype)
    pads = [(0, 0), (0, 0), (case.margin, case.margin), (0, 0)]
    padded = np.pad(x, pads, constant_values=nothing)
    axes = ["BKSD".index(axis) for axis in case.order]
    stored = mx.contiguous(mx.array(padded.transpose(axes)).astype(dtype))
    whole = stored.transpose(*np.argsort(axes).tolist())
    return whole[:, :, case.margin : case.margin + case.total]


def _quantized(
    x: mx.array, case: AttentionCase, bits: int, group_size: int
) -> tuple[tuple[mx.array, ...], np.ndarray]:
    """x [B, K, S, D] packed along D, each part a view as `_cache` has it; and in float64."""
    words, *factors = map(_numpy, mx.quantize(x, group_size=group_size, bits=bits))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    integers = (words[..., None] >> shifts & (2**bits - 1)).reshape(x.shape)
    scale, bias = (np.repeat(part.astype(np.float64), group_size, axis=-1) for part in factors)
    parts = (_cache(words, case, mx.uint32), *(_cache(part, case, x.dtype) for part in factors))
    return parts, integers * scale + bias


def _numpy(x: mx.array) -> np.ndarray:
    return np.array(x if x.dtype == mx.uint32 else x.astype(mx.float32))
