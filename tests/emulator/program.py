"""One kernel instance: checked, compiled, loaded, launched."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path

from . import native, source, toolchain
from .buffers import Memory
from .describe import buffer_name, describe
from .report import Finding, KernelError, Launch
from .signature import Signature, parse_signature, strip_instantiations


@dataclass
class Program:
    """A kernel instance from Metal source.

    `text` is the source, `call` the instance in it (`name` or `name<float, 64>`), `constants` the
    values of its function constants. Our own kernels have `checked`, for the two type checks, with
    the `header` and the `body` that MLX put into `text`.
    """

    text: str
    call: str
    constants: dict[str, object] = field(default_factory=dict)
    checked: bool = False
    header: str = ""
    body: str = ""
    label: str = ""  # what the kernel is called in faults; its own name when empty

    @property
    def name(self) -> str:
        return self.label or self.signature.name

    @functools.cached_property
    def signature(self) -> Signature:
        return parse_signature(self._plain, self.call)

    @functools.cached_property
    def library(self) -> Path:
        """The compiled kernel. Raises KernelError when a type check or the compiler objects."""
        text, _ = self._run
        cxx, opencl = (self._cxx, self._opencl) if self.checked else ("", "")
        target = toolchain.cache_dir() / f"{toolchain.key_of(text, cxx, opencl)}.so"
        if toolchain.cached(target):
            return target
        jobs = [("compile", toolchain.compile_library(text, target))]
        if self.checked:
            jobs.append(("check A", toolchain.check_cxx(cxx)))
            jobs.append(("check B", toolchain.check_opencl(opencl)))
        findings = []
        for name, job in jobs:
            try:
                toolchain.finish(job)
            except toolchain.CompileError as error:
                findings.append(_type_finding(name, str(error)))
        if findings:
            toolchain.discard(target)
            checks = [finding for finding in findings if "check" in finding.message]
            raise KernelError(self.name, checks or findings)
        toolchain.link(target)
        return target

    def launch(
        self,
        memories: list[Memory],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        *,
        seed: int = 0,
        timeout: float = 20.0,
    ) -> Launch:
        """Runs the kernel over `grid` threads; outputs are written into their memories.

        `memories` are in the order of the kernel's buffers. Faults are in the result's findings.
        """
        result = native.launch(self._loaded, memories, grid, threadgroup, seed, timeout)
        arrays = [self._run[1][declaration] for declaration, _ in result.arrays]
        texts = {f"{self.name}.metal": self.body, f"{self.name}.header": self.header}
        return Launch(
            kernel=self.name,
            call=self.call,
            grid=grid,
            threadgroup=threadgroup,
            traffic=result.traffic,
            threadgroup_arrays={
                name: size for name, (_, size) in zip(arrays, result.arrays, strict=True)
            },
            findings=describe(result.findings, self.library, memories, arrays, texts),
            rendezvous=result.rendezvous,
            seconds=result.seconds,
            library=self.library,
            counts=[
                (address, buffer_name(buffer, memories, arrays), write, accesses, size)
                for address, buffer, write, accesses, size in result.counts
            ],
        )

    @functools.cached_property
    def _loaded(self) -> native.Loaded:
        return native.load(self.library)

    @functools.cached_property
    def _plain(self) -> str:
        return strip_instantiations(self.text)[0]

    @functools.cached_property
    def _run(self) -> tuple[str, list[str]]:
        """The text that is executed, and the names of the threadgroup arrays declared in it."""
        plain = source.set_function_constants(self._plain, self.constants)
        text, names = source.rewrite(plain, source.RUN)
        return f'#include "msl.h"\n{text}\n{source.entry_point(self.signature)}', names

    @property
    def _cxx(self) -> str:
        text, _ = source.rewrite(self._plain, source.CXX)
        return f'#include "msl.h"\n{text}\nauto emu_instance = &{self.call};\n'

    @property
    def _opencl(self) -> str:
        body = f'#line 1 "{self.name}.metal"\n{self.body}'
        text = f'#line 1 "{self.name}.header"\n{self.header}\n#line 1 "{self.name}.signature"\n'
        text += source.opencl_kernel(self.signature, body)
        return f'#include "msl.h"\n{source.rewrite(text, source.OPENCL)[0]}'


def _type_finding(name: str, output: str) -> Finding:
    """Clang's output, at the place of its first error."""
    place = re.search(r"^([^\s:]+):(\d+):.*?error:", output, re.MULTILINE)
    file, line = (place.group(1), int(place.group(2))) if place else ("", 0)
    indented = "\n".join(f"      {text}" for text in output.splitlines())
    return Finding("type", f"{name}\n{indented}", file, line)
