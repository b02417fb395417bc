"""Running code that calls `mx.fast.metal_kernel`, with its kernels executed here.

Importing this module puts a stand-in in the place of `mx.fast.metal_kernel`. Kernels made through
it behave as MLX's do, except between `with emulated():` and its end.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from . import buffers
from .lint import lint
from .program import Program
from .report import Finding, KernelError, Launch, Report
from .signature import strip_instantiations

_make_native = mx.fast.metal_kernel
MAX_THREADS = 1024


@dataclass
class Session(Report):
    """The report of what runs inside `emulated()`, and how it runs."""

    seed: int = 0
    timeout: float = 20.0
    max_threads: int = MAX_THREADS
    raises: bool = True
    checked: bool = True
    _linted: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def run(self, kernel: MetalKernel, call: _Call) -> list[mx.array]:
        """Executes one call of a kernel and returns its outputs."""
        if self.checked:
            self._lint(kernel)
        findings = _limits(call, self.max_threads)
        if findings:
            raise KernelError(kernel.name, findings)
        program = kernel.program(call)
        memories, outputs = _memories(program, kernel, call)
        launch = program.launch(
            memories, call.grid, call.clipped, seed=self.seed, timeout=self.timeout
        )
        self.launches.append(launch)
        if launch.findings and self.raises:
            raise KernelError(kernel.name, launch.findings)
        return outputs()

    def _lint(self, kernel: MetalKernel) -> None:
        key = (kernel.source, kernel.header)
        if key in self._linted:
            return
        findings = [
            Finding("lint", message, f"{kernel.name}.{part}", line)
            for part, text in (("metal", kernel.source), ("header", kernel.header))
            for line, message in lint(text)
        ]
        if findings:
            raise KernelError(kernel.name, findings)
        self._linted.add(key)


_active: list[Session] = []


@contextlib.contextmanager
def emulated(
    *,
    seed: int = 0,
    timeout: float = 20.0,
    max_threads: int = MAX_THREADS,
    raises: bool = True,
    checked: bool = True,
) -> Iterator[Session]:
    """Executes every custom kernel called inside, and yields the report of it.

    seed: of the order in which threads run. timeout: seconds for one launch. max_threads: the
    largest threadgroup allowed. raises: KernelError at the first faulty launch, else the
    findings are only collected. checked: lint and type checks as well.
    """
    session = Session(
        seed=seed, timeout=timeout, max_threads=max_threads, raises=raises, checked=checked
    )
    _active.append(session)
    mx.disable_compile()
    try:
        yield session
    finally:
        _active.pop()
        if not _active:
            mx.enable_compile()


def emulate(
    function: Callable[..., mx.array | list[mx.array] | tuple[mx.array, ...]],
    *args: mx.array,
    **options: object,
) -> tuple[list[np.ndarray], Session]:
    """`function(*args)` under `emulated(**options)`: its outputs in numpy, and the report."""
    with emulated(**options) as session:
        result = function(*args)
        arrays = [result] if isinstance(result, mx.array) else list(result)
        mx.eval(arrays)
    return [buffers.to_numpy(array) for array in arrays], session


@dataclass
class _Call:
    """The arguments of one call of a kernel."""

    inputs: list[mx.array]
    output_shapes: list[tuple[int, ...]]
    output_dtypes: list[mx.Dtype]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    template: list[tuple[str, object]] | None
    init_value: float | None

    @property
    def clipped(self) -> tuple[int, int, int]:
        """The threadgroup as MLX dispatches it: no larger than the grid."""
        x, y, z = (min(a, b) for a, b in zip(self.threadgroup, self.grid, strict=True))
        return x, y, z


class MetalKernel:
    """What `mx.fast.metal_kernel` returns while the emulator is loaded."""

    def __init__(self, name: str, input_names, output_names, source: str, header: str = "", **rest):
        self.name, self.source, self.header = name, source, header
        self.input_names, self.output_names = list(input_names), list(output_names)
        self.ensure_row_contiguous = rest.get("ensure_row_contiguous", True)
        self._native = _make_native(name, input_names, output_names, source, header, **rest)

    def __call__(self, **kwargs) -> list[mx.array]:
        if not _active:
            return self._native(**kwargs)
        inputs = [x if isinstance(x, mx.array) else mx.array(x) for x in kwargs["inputs"]]
        if self.ensure_row_contiguous:
            inputs = [mx.contiguous(x) for x in inputs]
        mx.eval(inputs)
        call = _Call(
            inputs=inputs,
            output_shapes=[tuple(shape) for shape in kwargs["output_shapes"]],
            output_dtypes=list(kwargs["output_dtypes"]),
            grid=tuple(kwargs["grid"]),
            threadgroup=tuple(kwargs["threadgroup"]),
            template=kwargs.get("template"),
            init_value=kwargs.get("init_value"),
        )
        return _active[-1].run(self, call)

    def program(self, call: _Call) -> Program:
        """The instance that serves `call`."""
        return _program(self.name, self.header, self.source, self._captured(call))

    def _captured(self, call: _Call) -> str:
        """The whole Metal source that MLX generates for `call`."""
        found: list[str] = []

        def callback(node: dict) -> None:
            if node["type"] == "primitive" and node["name"] == "CustomKernel":
                found.append(node["arguments"][1])

        def traced(*inputs: mx.array) -> list[mx.array]:
            return self._native(
                inputs=list(inputs),
                output_shapes=call.output_shapes,
                output_dtypes=call.output_dtypes,
                grid=call.grid,
                threadgroup=call.threadgroup,
                template=call.template or [],
            )

        mx.export_function(callback, traced, *call.inputs)
        return found[0]


@functools.lru_cache(maxsize=1024)
def _program(name: str, header: str, body: str, captured: str) -> Program:
    """The captured source with line marks, so that faults name the line of the kernel's body."""
    plain, instances = strip_instantiations(captured)
    start = plain.rindex(body)
    before, after = plain[:start], plain[start + len(body) :]
    if header and before.startswith(header):
        before = before[len(header) :]
    text = (
        f'#line 1 "{name}.header"\n{header}\n#line 1 "{name}.signature"\n{before}'
        f'\n#line 1 "{name}.metal"\n{body}\n#line 1 "{name}.end"\n{after}'
    )
    generated = before.rsplit("[[kernel]] void ", 1)[1].split("(")[0].strip()
    return Program(
        text=text,
        call=instances[0] if instances else generated,
        checked=True,
        header=header,
        body=body,
        label=name,
    )


def _limits(call: _Call, max_threads: int) -> list[Finding]:
    threads = int(np.prod(call.threadgroup))
    findings = []
    if threads > max_threads:
        findings.append(
            Finding("limit", f"{threads} threads in a threadgroup, at most {max_threads} allowed")
        )
    if min(call.grid) < 1 or min(call.threadgroup) < 1:
        findings.append(
            Finding("limit", f"an empty grid {call.grid} or threadgroup {call.threadgroup}")
        )
    return findings


def _memories(
    program: Program, kernel: MetalKernel, call: _Call
) -> tuple[list[buffers.Memory], Callable[[], list[mx.array]]]:
    """The kernel's buffers in its order, and what makes arrays of the outputs afterwards."""
    known: dict[str, buffers.Memory] = {}
    for name, array in zip(kernel.input_names, call.inputs, strict=True):
        memory = buffers.from_mlx(name, array)
        known[name] = memory
        for part, values, dtype in (
            ("shape", array.shape, np.int32),
            ("strides", memory.strides, np.int64),
            ("ndim", array.ndim, np.int32),
        ):
            key = f"{name}_{part}"
            known[key] = buffers.from_array(key, np.array(values, dtype))
    results = []
    for name, shape, dtype in zip(
        kernel.output_names, call.output_shapes, call.output_dtypes, strict=True
    ):
        bits = np.zeros(shape, buffers.numpy_dtype(dtype))
        if call.init_value is not None:
            bits[...] = buffers.to_numpy_bits(mx.full(shape, call.init_value, dtype))
        known[name] = buffers.from_array(name, bits, buffers.OUTPUT)
        known[name].initialised = call.init_value is not None
        results.append((bits, dtype))

    def outputs() -> list[mx.array]:
        return [buffers.to_mlx(bits, dtype) for bits, dtype in results]

    return [known[name] for name in program.signature.buffers], outputs


mx.fast.metal_kernel = MetalKernel


__all__ = ["KernelError", "Launch", "MetalKernel", "Report", "Session", "emulate", "emulated"]
