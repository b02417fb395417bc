"""A kernel of a few lines, run once: for tests of the emulator itself."""

import mlx.core as mx
import numpy as np

from .session import Session, emulate


def metal(
    body: str,
    *,
    inputs: list[mx.array],
    shape: tuple[int, ...],
    dtype: mx.Dtype = mx.float32,
    grid: int | tuple[int, int, int] | None = None,
    threadgroup: int | tuple[int, int, int] = 32,
    **options: object,
) -> tuple[np.ndarray, Session]:
    """The output o and the report of one launch of `body` with the inputs a, b, …

    The grid has a thread for each element of o when it is not given. `options` are those of the
    kernel (header, template, init_value, ensure_row_contiguous) and of `emulated`.
    """
    template = options.pop("template", None)
    init_value = options.pop("init_value", None)
    kernel = mx.fast.metal_kernel(
        name="trial",
        input_names=list("abcdef"[: len(inputs)]),
        output_names=["o"],
        source=body,
        header=options.pop("header", ""),
        ensure_row_contiguous=options.pop("ensure_row_contiguous", False),
    )
    grid = grid or int(np.prod(shape))

    def call(*arrays: mx.array) -> list[mx.array]:
        return kernel(
            inputs=list(arrays),
            template=template,
            output_shapes=[shape],
            output_dtypes=[dtype],
            init_value=init_value,
            grid=_triple(grid),
            threadgroup=_triple(threadgroup),
        )

    outputs, report = emulate(call, *inputs, **options)
    return outputs[0], report


def _triple(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return size if isinstance(size, tuple) else (size, 1, 1)
