"""Our Metal kernels, made from the .metal files of this package at first use."""

import functools
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

_FOLDER = Path(__file__).parent


@functools.cache
def metal_source(name: str) -> str:
    """The text of `<name>.metal`."""
    return (_FOLDER / f"{name}.metal").read_text(encoding="utf-8")


@functools.cache
def metal_kernel(
    name: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    *,
    body: str | None = None,
    headers: tuple[str, ...] = ("common",),
    defines: tuple[str, ...] = (),
) -> Callable[..., list[mx.array]]:
    """The kernel `name` with the body `<body or name>.metal` behind `headers`.

    `defines` are preprocessor names set to 1. Inputs come with their strides, as they lie in
    memory. Two kernels of one body need two names: MLX keeps compiled code by name.
    """
    set_names = [f"#define {define} 1\n" for define in defines]
    return mx.fast.metal_kernel(
        name=name,
        input_names=list(inputs),
        output_names=list(outputs),
        source=metal_source(body or name),
        header="".join([*set_names, *map(metal_source, headers)]),
        ensure_row_contiguous=False,
    )
