"""The runtime library as Python calls it; the structures mirror runtime/abi.h."""

from __future__ import annotations

import ctypes
import functools
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import toolchain
from .buffers import OUTPUT, Memory
from .report import Traffic

THREADGROUP = 64  # buffer indices from here on are threadgroup arrays
NO_THREAD = 0xFFFF
_FINDINGS, _LINES = 64, 4096


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("granule_log2", ctypes.c_int32),
        ("size", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("initialised", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("read_bytes", ctypes.c_uint64),
        ("write_bytes", ctypes.c_uint64),
        ("read_unique", ctypes.c_uint64),
        ("write_unique", ctypes.c_uint64),
        ("read_group", ctypes.c_uint64),
    )


class RawFinding(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("buffer", ctypes.c_int32),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_uint32),
        ("write", ctypes.c_uint32),
        ("lane", ctypes.c_uint32),
        ("other_lane", ctypes.c_uint32),
        ("group", ctypes.c_uint32 * 3),
        ("count", ctypes.c_uint32),
    )


class _LineCount(ctypes.Structure):
    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("buffer", ctypes.c_int32),
        ("write", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("module_base", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("buffer_count", ctypes.c_int32),
        ("finding_capacity", ctypes.c_int32),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("findings", ctypes.POINTER(RawFinding)),
        ("lines", ctypes.POINTER(_LineCount)),
        ("line_capacity", ctypes.c_int32),
        ("finding_count", ctypes.c_int32),
        ("line_count", ctypes.c_int32),
        ("aborted", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("timeout", ctypes.c_double),
        ("threadgroup_bytes", ctypes.c_uint64),
        ("threadgroup_size", ctypes.c_uint64 * 64),
        ("threadgroup_site", ctypes.c_uint32 * 64),
        ("threadgroup_count", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("rendezvous", ctypes.c_uint64),
    )


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def runtime() -> ctypes.PyDLL:
    # PyDLL keeps the interpreter's lock: there is one launch at a time in a process.
    library = ctypes.PyDLL(str(toolchain.runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.emu_launch.argtypes = [ctypes.POINTER(_Launch)]
    return library


@dataclass(frozen=True)
class Loaded:
    """A kernel library in this process."""

    library: ctypes.CDLL  # kept, so that it stays loaded
    entry: int
    base: int


def load(path: Path) -> Loaded:
    """Loads a kernel library on top of the runtime."""
    runtime()
    library = ctypes.CDLL(str(path))
    entry = ctypes.cast(library.emu_entry, ctypes.c_void_p).value or 0
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(entry), ctypes.byref(info))
    return Loaded(library, entry, info.base or 0)


@dataclass(frozen=True)
class Result:
    """What the runtime says of a launch; addresses are relative to the kernel library."""

    findings: list[RawFinding]
    counts: list[tuple[int, int, bool, int, int]]  # (address, buffer, write, accesses, bytes)
    traffic: dict[str, Traffic]
    arrays: list[tuple[int, int]]  # (declaration, bytes) of each threadgroup array
    rendezvous: int
    seconds: float


def launch(
    loaded: Loaded,
    memories: list[Memory],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    seed: int,
    timeout: float,
) -> Result:
    """Runs a kernel. Raises MemoryError when its buffers find no room."""
    call, buffers = _Launch(), _buffers(memories)
    findings, lines = (RawFinding * _FINDINGS)(), (_LineCount * _LINES)()
    call.entry, call.module_base = loaded.entry, loaded.base
    call.grid[:], call.group[:] = grid, threadgroup
    call.buffer_count, call.buffers = len(memories), buffers
    call.finding_capacity, call.findings = _FINDINGS, findings
    call.line_capacity, call.lines = _LINES, lines
    call.seed, call.timeout = seed, timeout
    started = time.perf_counter()
    if runtime().emu_launch(ctypes.byref(call)):
        raise MemoryError("the emulator found no room for the buffers of a launch")
    return Result(
        findings=findings[: call.finding_count],
        counts=[
            (c.pc, c.buffer, bool(c.write), c.count, c.bytes) for c in lines[: call.line_count]
        ],
        traffic={m.name: _traffic(m, b) for m, b in zip(memories, buffers, strict=True)},
        arrays=[
            (call.threadgroup_site[i], call.threadgroup_size[i])
            for i in range(call.threadgroup_count)
        ],
        rendezvous=call.rendezvous,
        seconds=time.perf_counter() - started,
    )


def _buffers(memories: list[Memory]) -> ctypes.Array:
    buffers = (_Buffer * len(memories))()
    for buffer, memory in zip(buffers, memories, strict=True):
        buffer.name = memory.name.encode()
        buffer.kind = memory.kind
        buffer.granule_log2 = memory.granule.bit_length() - 1
        buffer.size = memory.data.nbytes
        buffer.data = memory.data.ctypes.data
        buffer.valid = memory.valid.ctypes.data if memory.valid is not None else None
        buffer.initialised = memory.initialised or memory.kind != OUTPUT
    return buffers


def _traffic(memory: Memory, b: _Buffer) -> Traffic:
    return Traffic(
        size=int(np.prod(memory.shape, dtype=np.int64)) * memory.itemsize,
        read=b.read_bytes,
        written=b.write_bytes,
        group_read=b.read_group,
        unique_read=b.read_unique,
        unique_written=b.write_unique,
    )
