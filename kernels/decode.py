"""Attention of few queries over a long cache, split over the keys, on Metal."""

import functools
import math
from dataclasses import dataclass
from typing import Unpack

import mlx.core as mx

from .arguments import SPEC_NAMES, spec_arrays
from .checks import Arrays
from .source import metal_kernel
from .spec import AttentionSpec

HEAD_DIMS = (64, 80, 96, 128, 192, 256)
MAX_QUERIES = 16  # L; for more, the prefill kernel makes better use of its tiles
THREADS = 256
HEADERS = ("common", "decode_common")
OUTPUTS = ("out", "stats")
_TILES = (8, 16, 32, 64, 128)  # rows
_QUERY_BYTES = 16384  # of threadgroup memory, the most for the rows of a tile
_SPLIT_KEYS = 256  # the fewest that are worth a split
_MAX_SPLITS = 64


@dataclass(frozen=True)
class DecodePlan:
    """How a call is cut up; B times K times tiles times splits threadgroups."""

    rows: int  # of a tile
    tiles: int  # that the G·L rows of a key/value head fill
    splits: int  # shares of the keys


@functools.cache
def decode_plan(spec: AttentionSpec, length: int, total: int, itemsize: int) -> DecodePlan:
    """The plan for L = `length` and S = `total`; a value of q has `itemsize` bytes.

    It knows neither the batch nor the device: a sequence gets the same bits in every batch.
    """
    used = spec.heads // spec.kv_heads * length
    fitting = [rows for rows in _TILES if rows * spec.head_dim * itemsize <= _QUERY_BYTES]
    rows = next((rows for rows in fitting if rows >= used), fitting[-1])
    span = min(total, length - 1 + (spec.window or total))
    # 16 keys a row: what splits write is then small beside the keys and values they read.
    splits = -(-span // max(_SPLIT_KEYS, 16 * rows))
    return DecodePlan(rows, -(-used // rows), min(splits, _MAX_SPLITS))


def unsupported(
    spec: AttentionSpec, dtype: mx.Dtype, head_dim: int, length: int, total: int
) -> str | None:
    """Why the decode kernels cannot do L = `length` queries on S = `total` keys; None if they can.

    Every `dtype` that the checks let pass is served.
    """
    if head_dim not in HEAD_DIMS:
        return f"head_dim {head_dim} is not among {', '.join(map(str, HEAD_DIMS))}"
    if not length or not total:
        return f"{length} queries and {total} keys leave nothing to compute"
    if length > MAX_QUERIES:
        return f"{length} queries are more than {MAX_QUERIES}"
    return None


def decode_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    *,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """See `dispatch.attention`; the arguments have been checked, and `unsupported` said None.

    A threadgroup takes one key/value head of one sequence and a split of the keys that some row
    sees. The G query heads of that head times the L queries are the rows of one tile, so a key and
    a value are read once for all of them (simdgroups with other rows of the tile ask for them at
    the same time, and leave that to the cache). Rows that do not fit make a second tile, which
    reads them again. Drawn for G = 2, L = 3, S = 9, W = 4 and splits of 3 keys, `.` for what is
    never read::

        head 0, query 0   . . .|1 1 1|1 0 0|
        head 0, query 1   . . .|0 1 1|1 1 0|
        head 0, query 2   . . .|0 0 1|1 1 1|
        head 1, query 0   . . .|1 1 1|1 0 0|
        head 1, query 1   . . .|0 1 1|1 1 0|
        head 1, query 2   . . .|0 0 1|1 1 1|

    The only split writes the result; several leave the maximum, mass and sum of each row to
    `decode_reduce`, which puts them together.
    """
    kernel = metal_kernel("decode", ("q", "k", "v", *SPEC_NAMES), OUTPUTS, headers=HEADERS)
    out, sums = launch_splits(kernel, q, [k, v], spec, k.shape[2], [], arrays)
    return (out, sums) if lse else out


def launch_splits(
    kernel: mx.fast.metal_kernel,
    q: mx.array,
    cache: list[mx.array],
    spec: AttentionSpec,
    total: int,
    template: list[tuple[str, int]],
    arrays: dict[str, mx.array | None],
) -> tuple[mx.array, mx.array]:
    """Output [B, H, L, D] and log-sum-exp [B, H, L] of a kernel like decode.metal.

    `cache` are its inputs between q and SPEC_NAMES, `arrays` the options among the latter,
    `template` what the cache adds to its template arguments. S is `total`.
    """
    batch, heads, length, head_dim = q.shape
    plan = decode_plan(spec, length, total, q.dtype.size)
    direct = plan.splits == 1
    rows = (batch, heads, length)
    shapes = [(*rows, head_dim), rows]
    if not direct:
        shapes = [(*rows, plan.splits, head_dim), (*rows, plan.splits, 2)]
    options = [
        _in_device_memory(array) if name in Arrays.__annotations__ else array
        for name, array in zip(SPEC_NAMES, spec_arrays(spec, batch, **arrays), strict=True)
    ]
    out, stats = kernel(
        inputs=[q, *cache, *options],
        template=[
            ("T", q.dtype),
            ("D", head_dim),
            ("ROWS", plan.rows),
            ("DIRECT", direct),
            *template,
        ],
        grid=(THREADS * plan.tiles * plan.splits, spec.kv_heads, batch),
        threadgroup=(THREADS, 1, 1),
        output_shapes=shapes,
        output_dtypes=[q.dtype if direct else mx.float32, mx.float32],
    )
    return (out, stats) if direct else _reduce(out, stats, options[0], q.dtype)


def _reduce(
    partial: mx.array, stats: mx.array, sinks: mx.array, dtype: mx.Dtype
) -> tuple[mx.array, mx.array]:
    """partial [B, H, L, splits, D] and stats [B, H, L, splits, 2] → what `launch_splits` gives."""
    *rows, _, head_dim = partial.shape
    kernel = metal_kernel(
        "decode_reduce", ("partial", "stats", "sinks"), ("out", "lse"), headers=HEADERS
    )
    out, lse = kernel(
        inputs=[partial, stats, sinks],
        template=[("T", dtype)],
        grid=(head_dim, math.prod(rows), 1),
        threadgroup=(head_dim, 1, 1),
        output_shapes=[(*rows, head_dim), tuple(rows)],
        output_dtypes=[dtype, mx.float32],
    )
    return out, lse


def _in_device_memory(array: mx.array) -> mx.array:
    """A view of an array that MLX passes in device memory, so that one compiled kernel serves all
    head counts and batches: arrays of fewer than 8 elements go to constant memory otherwise."""
    return mx.broadcast_to(array, (8, *array.shape))
