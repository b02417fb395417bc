"""Attention of many queries at once, a tile of 32 at a time, on Metal."""

from collections.abc import Callable
from typing import Unpack

import mlx.core as mx

from .arguments import SPEC_NAMES, spec_arrays
from .checks import Arrays
from .source import metal_kernel
from .spec import AttentionSpec

HEAD_DIMS = (64, 80, 96, 128, 192, 256)
QUERIES = 32  # BQ: query rows of a tile
THREADS = 128
HEADERS = ("common", "tile")
THREADGROUP_BYTES = 32768  # of memory that Metal gives a threadgroup


def prefill_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    *,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """See `dispatch.attention`; the arguments have been checked, and `unsupported` said None.

    A threadgroup makes one tile of rows: it reads the keys and values that some of its rows see,
    each once, a block at a time, and no others. Blocks begin at the first of these keys, not at
    multiples of their size. Drawn for tiles of 4 rows and blocks of 4 keys, with L = 8, S = 13
    and W = 5; what is read stands between bars, where 0 is read for the tile's other rows::

        . |1 1 1 1|1 0 0 0|. . . .
        . |0 1 1 1|1 1 0 0|. . . .
        . |0 0 1 1|1 1 1 0|. . . .
        . |0 0 0 1|1 1 1 1|. . . .

        . . . . . |1 1 1 1|1 0 0 0|
        . . . . . |0 1 1 1|1 1 0 0|
        . . . . . |0 0 1 1|1 1 1 0|
        . . . . . |0 0 0 1|1 1 1 1|

    Without a window, with L = 5 and S = 6, the second tile has one row::

        |1 1 0 0|0| .
        |1 1 1 0|0| .
        |1 1 1 1|0| .
        |1 1 1 1|1| .

        |1 1 1 1|1 1|
    """
    kernel = metal_kernel("prefill", ("q", "k", "v", *SPEC_NAMES), ("out", "lse"), headers=HEADERS)
    out, sums = launch_tiles(kernel, q, [k, v], spec, [], arrays)
    return (out, sums) if lse else out


def launch_tiles(
    kernel: Callable[..., list[mx.array]],
    q: mx.array,
    cache: list[mx.array],
    spec: AttentionSpec,
    template: list[tuple[str, object]],
    arrays: dict[str, mx.array | None],
) -> list[mx.array]:
    """Output and log-sum-exp of a kernel with the body of prefill.metal.

    `cache` are the kernel's inputs between q and SPEC_NAMES, `arrays` the options among the
    latter, `template` what the cache adds to the template arguments.
    """
    batch, heads, length, head_dim = q.shape
    return kernel(
        inputs=[q, *cache, *spec_arrays(spec, batch, **arrays)],
        template=[
            ("T", q.dtype),
            ("D", head_dim),
            ("BK", block_keys(head_dim)),
            ("SOFTCAP", spec.softcap is not None),
            ("ALIBI", arrays.get("slopes") is not None),
            *template,
        ],
        grid=(-(-length // QUERIES) * THREADS, heads, batch),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[q.shape, (batch, heads, length)],
        output_dtypes=[q.dtype, mx.float32],
    )


def unsupported(
    spec: AttentionSpec, dtype: mx.Dtype, head_dim: int, length: int, total: int
) -> str | None:
    """Why the kernel cannot do L = `length` queries on S = `total` keys; None when it can."""
    if head_dim not in HEAD_DIMS:
        return f"head_dim {head_dim} is not among {', '.join(map(str, HEAD_DIMS))}"
    if not length or not total:
        return f"{length} queries and {total} keys leave nothing to compute"
    needed = tile_bytes(dtype, head_dim)
    if needed > THREADGROUP_BYTES:
        kind = str(dtype).rsplit(".")[-1]
        return (
            f"head_dim {head_dim} in {kind} takes {needed} bytes of threadgroup memory; "
            f"Metal has {THREADGROUP_BYTES}"
        )
    return None


def block_keys(head_dim: int) -> int:
    """BK: the keys of a block."""
    return 32 if head_dim <= 80 else 16


def tile_bytes(dtype: mx.Dtype, head_dim: int) -> int:
    """Threadgroup memory of the query tile and of the one that keys and values share."""
    return (QUERIES + block_keys(head_dim)) * (head_dim * dtype.size + 16)
