"""MLX's own kernels, from the headers in its wheel, as programs of the emulator."""

import functools
from pathlib import Path

import mlx.core as mx
import numpy as np

from . import buffers, source, toolchain
from .program import Program
from .report import KernelError, Launch

_KERNELS = "mlx/backend/metal/kernels"


@functools.cache
def mlx_kernel(
    header: str, call: str, constants: tuple[tuple[str, object], ...] = (), before: str = ""
) -> Program:
    """The instance `call` of a kernel in `header`, a path below MLX's kernel headers.

    `constants` are the values of its function constants; those not given are false.
    `before` names headers, separated by spaces, that MLX puts in front when it compiles this one.
    """
    roots = [toolchain.RUNTIME / "instead", Path(mx.__file__).parent / "include"]
    seen: set[str] = set()
    names = ["utils.h", "defines.h", *before.split(), header]
    text = "\n".join(source.flatten(f"{_KERNELS}/{name}", roots, seen) for name in names)
    return Program(text=text, call=call, constants=dict(constants))


def run(
    program: Program,
    arguments: dict[str, np.ndarray | np.generic],
    outputs: tuple[str, ...],
    groups: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    **options: object,
) -> Launch:
    """One launch of `groups` threadgroups; the arrays named in `outputs` are written.

    Buffers that are not in `arguments` are bound to nothing and may not be touched.
    Raises KernelError when the launch has findings.
    """
    memories = []
    for name in program.signature.buffers:
        array = np.asarray(arguments.get(name, np.zeros(0, np.uint8)))
        kind = buffers.OUTPUT if name in outputs else buffers.INPUT
        memories.append(buffers.from_array(name, array, kind))
    x, y, z = (n * t for n, t in zip(groups, threadgroup, strict=True))
    launch = program.launch(memories, (x, y, z), threadgroup, **options)
    if launch.findings:
        raise KernelError(launch.kernel, launch.findings)
    return launch
