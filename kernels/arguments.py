"""The small arrays that carry a spec, and what was left out, to our kernels.

Those that are kept are constants, not operations: a graph that is being traced can share them.
"""

import functools

import mlx.core as mx

from .spec import AttentionSpec

# Names of the arrays that `spec_arrays` gives, in its order
SPEC_NAMES = ("sinks", "slopes", "starts", "ends", "scalars", "options")
NO_WINDOW = 1 << 30  # keys
_NO_END = (1 << 31) - 1


@functools.cache
def scalars(spec: AttentionSpec) -> mx.array:
    """float32 [scale, softcap]; a softcap of 0 where there is none."""
    return mx.array([spec.scale, spec.softcap or 0.0], mx.float32)


@functools.cache
def options(spec: AttentionSpec) -> mx.array:
    """int32 [causal, W]; NO_WINDOW for W where there is no window."""
    return mx.array([spec.causal, spec.window or NO_WINDOW], mx.int32)


@functools.cache
def no_sinks(heads: int) -> mx.array:
    """float32 [H]: sinks without mass."""
    return mx.array([-mx.inf] * heads, mx.float32)


@functools.cache
def no_slopes(heads: int) -> mx.array:
    """float32 [H] of zeros."""
    return mx.array([0.0] * heads, mx.float32)


@functools.cache
def no_starts(batch: int) -> mx.array:
    """int32 [B] of zeros."""
    return mx.array([0] * batch, mx.int32)


@functools.cache
def no_ends(batch: int) -> mx.array:
    """int32 [B]: past every S; kernels take the smaller of `ends` and S."""
    return mx.array([_NO_END] * batch, mx.int32)


def spec_arrays(
    spec: AttentionSpec,
    batch: int,
    *,
    sinks: mx.array | None = None,
    slopes: mx.array | None = None,
    starts: mx.array | None = None,
    ends: mx.array | None = None,
) -> list[mx.array]:
    """SPEC_NAMES, each array that is None replaced by one that changes nothing.

    Those of the caller are made contiguous: kernels index them by element, without strides.
    """
    return [
        no_sinks(spec.heads) if sinks is None else mx.contiguous(sinks),
        no_slopes(spec.heads) if slopes is None else mx.contiguous(slopes),
        no_starts(batch) if starts is None else mx.contiguous(starts),
        no_ends(batch) if ends is None else mx.contiguous(ends),
        scalars(spec),
        options(spec),
    ]
