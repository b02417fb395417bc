"""The compiler, the cache of what it made, and line numbers of addresses."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import platformdirs

RUNTIME = Path(__file__).parent / "runtime"
_KEPT_DAYS = 30
_NAMES = ["clang-19", "clang", *(f"clang-{v}" for v in (22, 21, 20, 18, 17))]
OLDEST = 17


class CompileError(Exception):
    """What clang said; the message is its output."""


@functools.cache
def find_clang() -> str | None:
    """A clang of version 17 or later; None when there is none, or this is no Linux."""
    if sys.platform != "linux":
        return None
    for name in _NAMES:
        path = shutil.which(name)
        if path and _version(path) >= OLDEST:
            return path
    return None


def _version(path: str) -> int:
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"clang version (\d+)", result.stdout)
    apple = "Apple" in result.stdout
    return int(match.group(1)) if match and not apple else 0


def clang() -> str:
    path = find_clang()
    if path is None:
        raise FileNotFoundError(f"the Metal emulator needs clang {OLDEST} or later on PATH")
    return path


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """Instructions for half precision, where this machine has them (the library is cached)."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    return ("-mavx2", "-mf16c", "-mfma") if {"avx2", "f16c", "fma"} <= flags else ()


_COMMON = (
    *("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off"),
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
)
RUN_FLAGS = (
    *("-x", "c++", "-O1", "-finline-functions", "-gdwarf-4", "-gline-tables-only"),
    *("-fno-math-errno", "-ftrivial-auto-var-init=pattern"),
    "-fno-finite-loops",
    *("-Xclang", "-fsanitize=thread"),
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    *("-Xclang", "-fsanitize=array-bounds,integer-divide-by-zero"),
    *("-Xclang", "-fsanitize-recover=array-bounds,integer-divide-by-zero"),
    *("-Xclang", "-fsanitize-minimal-runtime"),
    *("-w", "-DEMU_RUN", f"-I{RUNTIME / 'msl'}"),
)
CXX_FLAGS = (
    *("-x", "c++", "-std=c++17", "-fsyntax-only", "-DEMU_CXX", f"-I{RUNTIME / 'msl'}"),
    *("-Wall", "-Werror=implicit-float-conversion", "-Werror=uninitialized"),
    *("-Werror=array-bounds", "-Werror=return-type"),
    *("-Wno-duplicate-decl-specifier", "-Wno-unknown-attributes", "-Wno-undefined-inline"),
    *("-Wno-unused", "-Wno-sign-compare", "-Wno-ignored-attributes"),
    "-Wno-implicit-int-float-conversion",
)
OPENCL_FLAGS = (
    *("-x", "clcpp", "-cl-std=clc++2021", "-fsyntax-only", "-cl-no-stdinc", "-DEMU_OPENCL"),
    *("-Xclang", "-cl-ext=-all,+cl_khr_fp16", f"-I{RUNTIME / 'msl'}"),
    *("-Wno-duplicate-decl-specifier", "-Wno-unknown-attributes", "-Wno-undefined-inline", "-w"),
)


@functools.cache
def cache_dir() -> Path:
    """Compiled kernels, each under the hash of all that went into it; unused ones go in time."""
    path = Path(platformdirs.user_cache_dir("pippin")) / "emulator"
    path.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - _KEPT_DAYS * 86400
    for file in path.iterdir():
        with contextlib.suppress(OSError):  # another process was faster
            if file.stat().st_mtime < oldest:
                file.unlink()
    return path


def cached(target: Path) -> bool:
    """Is it there? Marks it as used."""
    try:
        os.utime(target)
    except FileNotFoundError:
        return False
    return True


@functools.cache
def _base_hash() -> str:
    digest = hashlib.sha256()
    for file in sorted(RUNTIME.rglob("*")):
        if file.is_file():
            digest.update(file.read_bytes())
    version = subprocess.run([clang(), "--version"], capture_output=True, check=True).stdout
    digest.update(version + repr((machine_flags(), _COMMON, RUN_FLAGS)).encode())
    return digest.hexdigest()


def key_of(*texts: str) -> str:
    """A name for what these texts compile to, with this runtime, compiler and machine."""
    return hashlib.sha256("\0".join([_base_hash(), *texts]).encode()).hexdigest()[:32]


def runtime_library() -> Path:
    """The emulator's own shared library, built when it is not in the cache."""
    target = cache_dir() / f"runtime-{_base_hash()[:32]}.so"
    if not cached(target):
        partial = target.with_suffix(f".{os.getpid()}.part")
        source = str(RUNTIME / "emulator.cpp")
        command = [clang(), *_COMMON, *machine_flags(), "-x", "c++", "-O2", "-shared", source]
        # Kernels find the math functions and half conversions of these two through it.
        libraries = ["-Wl,--no-as-needed", "-lm", "-lgcc_s"]
        run([*command, "-o", str(partial), *libraries])
        partial.rename(target)
    return target


def run(command: list[str], text: str | None = None) -> None:
    finish(start(command, text))


def start(command: list[str], text: str | None = None) -> subprocess.Popen:
    """Begins a command whose input is `text`."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if process.stdin:
        process.stdin.write(text or "")
        process.stdin.close()
        process.stdin = None
    return process


def finish(process: subprocess.Popen) -> None:
    """Waits for it. Raises CompileError with its output when it failed."""
    output = process.communicate()[0]
    if process.returncode:
        raise CompileError(output.strip())


def compile_library(text: str, target: Path) -> subprocess.Popen:
    """Begins to compile a kernel to an object beside `target`; see `link`."""
    flags = [*_COMMON, *machine_flags(), *RUN_FLAGS]
    return start([clang(), *flags, "-c", "-", "-o", str(_object(target))], text)


def link(target: Path) -> None:
    """Makes `target` from its object and leaves nothing half-written."""
    made, partial = _object(target), target.with_suffix(f".{os.getpid()}.part")
    linker = shutil.which("ld") or shutil.which("ld.lld")
    command = [linker] if linker else [clang()]
    run([*command, "-shared", str(made), "-o", str(partial)])
    made.unlink()
    partial.rename(target)


def discard(target: Path) -> None:
    """Removes the object that will not be linked."""
    _object(target).unlink(missing_ok=True)


def _object(target: Path) -> Path:
    return target.with_suffix(f".{os.getpid()}.o")


def check_cxx(text: str) -> subprocess.Popen:
    """Begins check A, C++ with numbered address spaces."""
    return start([clang(), *CXX_FLAGS, "-"], text)


def check_opencl(text: str) -> subprocess.Popen:
    """Begins check B, C++ for OpenCL without generic address space and without fp64."""
    return start([clang(), *OPENCL_FLAGS, "-"], text)


def lines_of(library: Path, addresses: list[int], *, nearby: bool = False) -> list[tuple[str, int]]:
    """(file, line) of return addresses, looking through what the shim inlined; ("", 0) unknown.

    The optimizer drops the line of what it moves out of a loop. `nearby` then takes the line of
    the code before.
    """
    found = _look_up(library, [max(address - 1, 0) for address in addresses])
    unknown = [i for i, (file, _) in enumerate(found) if not file and addresses[i]]
    if nearby and unknown:
        steps = range(4, 68, 4)
        before = _look_up(library, [addresses[i] - step for i in unknown for step in steps])
        for n, i in enumerate(unknown):
            places = before[n * len(steps) : (n + 1) * len(steps)]
            found[i] = next((place for place in places if place[0]), ("", 0))
    return found


def _look_up(library: Path, addresses: list[int]) -> list[tuple[str, int]]:
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or not addresses:
        return [("", 0)] * len(addresses)
    command = [tool, "-a", "-i", "-e", str(library), *map(hex, addresses)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    blocks = re.split(r"^0x[0-9a-fA-F]+\n", output, flags=re.MULTILINE)[1:]
    return [_frame(block) for block in blocks]


def _frame(block: str) -> tuple[str, int]:
    """The innermost frame of the kernel's own text."""
    for frame in block.splitlines():
        file, _, rest = frame.rpartition(":")
        number = re.match(r"\d+", rest)
        if number and int(number.group()) and str(RUNTIME) not in file and "?" not in file:
            return os.path.basename(file), int(number.group())
    return "", 0
