"""How fast our attention kernels are beside what MLX's own operations do for the same call."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..kernels.dispatch import ATTENTION, QUANTIZED, has_metal
from ..kernels.fallback import fallback_attention
from ..runtime.errors import InputError
from .attention_calls import CALLS, AttentionCall
from .bench import Figure, Report, check_rounds, figure

_CHAINED = 16  # calls in one timing, each on the output of the one before: they cannot overlap

Attend = Callable[[mx.array], mx.array]  # q [B, H, L, D] → output of the same shape


@dataclass(frozen=True)
class Timing:
    """One call, by our kernel and by MLX."""

    case: str
    kernel: str  # "decode" or "prefill"
    chosen: str  # who computes it here when nothing is forced
    kernel_ms: Figure  # of one call
    mlx_ms: Figure
    ratio: Figure  # MLX's time over ours, round by round: above 1 ours is faster
    difference: float  # largest, relative to the largest output


def bench_kernels(
    calls: Sequence[AttentionCall] = CALLS, *, rounds: int = 5, report: Report | None = None
) -> list[Timing]:
    """Time every call that a kernel of ours serves. Raises InputError where there is no Metal."""
    check_rounds(rounds)
    if not has_metal():
        raise InputError(
            "this machine has no Metal device, so there is nothing to time; "
            "run `pippin bench kernels` on a Mac with Apple silicon"
        )
    timings = []
    for call in calls:
        if call.choice(mode="kernels").name != "fallback":
            if report:
                report(call.name)
            timings.append(measure(call, rounds))
    return timings


def measure(call: AttentionCall, rounds: int, chained: int = _CHAINED) -> Timing:
    """Time `call` both ways in turn, so that a machine that slows down slows both."""
    inputs = make_inputs(call)
    kernel = call.choice(metal=True, mode="kernels").name
    ours, theirs = kernel_attend(call, inputs, kernel), mlx_attend(call, inputs)
    wanted, got = (attend(inputs.q).astype(mx.float32) for attend in (theirs, ours))
    difference = (mx.abs(got - wanted).max() / mx.abs(wanted).max()).item()
    both = (ours, theirs)
    for attend in both:
        _seconds(attend, inputs.q, chained)  # a warm-up
    times = [[_seconds(attend, inputs.q, chained) for attend in both] for _ in range(rounds)]
    return Timing(
        case=call.name,
        kernel=kernel,
        chosen=call.choice().name,
        kernel_ms=figure([1000 * ours for ours, _ in times]),
        mlx_ms=figure([1000 * theirs for _, theirs in times]),
        ratio=figure([theirs / ours for ours, theirs in times]),
        difference=difference,
    )


def _seconds(attend: Attend, q: mx.array, chained: int) -> float:
    """Of one call in a chain of them."""
    start = time.perf_counter()
    for _ in range(chained):
        q = attend(q)
    mx.eval(q)
    return (time.perf_counter() - start) / chained


@dataclass(frozen=True)
class Inputs:
    """The arrays of a call; a packed cache is (words, scales, biases)."""

    q: mx.array
    k: mx.array | tuple[mx.array, ...]
    v: mx.array | tuple[mx.array, ...]
    arrays: dict[str, mx.array]  # sinks, slopes, ends: those the call has


def make_inputs(call: AttentionCall) -> Inputs:
    """Standard normal numbers; sequences of a ragged batch end an eighth of S apart."""
    spec, key = call.spec, mx.random.key(0)
    heads = (spec.heads, spec.kv_heads, spec.kv_heads)
    lengths = (call.length, call.total, call.total)
    q, k, v = (
        mx.random.normal((call.batch, h, n, spec.head_dim), key=part).astype(call.dtype)
        for h, n, part in zip(heads, lengths, mx.random.split(key, 3), strict=True)
    )
    if call.bits:
        k, v = (tuple(mx.quantize(x, call.group_size, call.bits)) for x in (k, v))
    arrays = {}
    if call.sinks:
        arrays["sinks"] = mx.random.normal((spec.heads,), key=key)
    if call.slopes:
        arrays["slopes"] = 2.0 ** (-8 * mx.arange(1, spec.heads + 1) / spec.heads)
    if call.ragged:
        apart = mx.arange(call.batch) % 4 * (call.total // 8)
        arrays["ends"] = (call.total - apart).astype(mx.int32)
    mx.eval(q, k, v, arrays)
    return Inputs(q, k, v, arrays)


def kernel_attend(call: AttentionCall, inputs: Inputs, kernel: str) -> Attend:
    """The call by our kernel."""
    options = dict(inputs.arrays, lse=call.lse)
    function = ATTENTION[kernel]
    if call.bits:
        function = QUANTIZED[kernel]
        options |= {"bits": call.bits, "group_size": call.group_size}

    def attend(q: mx.array) -> mx.array:
        out = function(q, inputs.k, inputs.v, call.spec, **options)
        return out[0] if call.lse else out

    return attend


def mlx_attend(call: AttentionCall, inputs: Inputs) -> Attend:
    """The call as one writes it with MLX alone: its op with a mask where it has what is needed,
    its operations one after another for softcap, log-sum-exp and packed keys. A mask is made once,
    outside of what is timed, as a model makes it once for all its layers."""
    spec, arrays = call.spec, inputs.arrays
    if call.bits:
        return _packed_attend(call, inputs)
    if spec.softcap is not None or call.lse:
        options = dict(arrays, lse=True)
        return lambda q: fallback_attention(q, inputs.k, inputs.v, spec, **options)[0]
    mask = mlx_mask(call, inputs)
    sinks = arrays["sinks"].astype(call.dtype) if call.sinks else None
    return lambda q: mx.fast.scaled_dot_product_attention(
        q, inputs.k, inputs.v, scale=spec.scale, mask=mask, sinks=sinks
    )


def _packed_attend(call: AttentionCall, inputs: Inputs) -> Attend:
    """Two quantized products with a softmax between them, which holds all scores."""
    layout = {"bits": call.bits, "group_size": call.group_size}
    k, v = ([part[:, :, None] for part in parts] for parts in (inputs.k, inputs.v))
    mask = _seen(call, inputs)

    def attend(q: mx.array) -> mx.array:
        grouped = mx.unflatten(q * call.spec.scale, 1, (call.spec.kv_heads, -1))
        scores = mx.quantized_matmul(grouped, *k, transpose=True, **layout)
        weights = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1, precise=True)
        return mx.quantized_matmul(weights, *v, transpose=False, **layout).flatten(1, 2)

    return attend


def mlx_mask(call: AttentionCall, inputs: Inputs) -> mx.array | str | None:
    """What MLX's op takes as its mask."""
    if call.slopes:
        rows = call.total - call.length + mx.arange(call.length)[:, None]
        distances = rows - mx.arange(call.total)
        bias = -inputs.arrays["slopes"][:, None, None] * distances
        mask = mx.where(_seen(call, inputs), bias, -mx.inf).astype(call.dtype)
    elif call.ragged or call.spec.window is not None:
        mask = _seen(call, inputs)
    else:
        return "causal" if call.length > 1 else None
    mx.eval(mask)
    return mask


def _seen(call: AttentionCall, inputs: Inputs) -> mx.array:
    """bool [L, S], or [B, 1, L, S] of a ragged batch: the keys that each query sees."""
    ends = inputs.arrays.get("ends", mx.array([call.total]))[:, None, None, None]
    rows = ends - call.length + mx.arange(call.length)[:, None]
    keys = mx.arange(call.total)
    seen = (keys <= rows) & (keys < ends)
    if call.spec.window is not None:
        seen = seen & (keys > rows - call.spec.window)
    seen = seen if call.ragged else seen[0, 0]
    mx.eval(seen)
    return seen
