"""How much memory is left, asked before a large allocation instead of after it failed."""

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from .errors import InputError

_MIB = 2**20


def available_bytes() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    if sys.platform == "linux":
        return _linux_available()
    if sys.platform == "darwin":
        # Total, not free, memory: macOS keeps nearly all of it in reclaimable caches.
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.memsize"], capture_output=True, text=True, check=False
        )
        return int(answer.stdout) if answer.returncode == 0 else None
    return None


def check_memory(needed: int, what: str) -> None:
    """Raise InputError, naming both numbers, when `needed` bytes for `what` are not there."""
    available = available_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"{what}: {-(-needed // _MIB)} MiB needed, {available // _MIB} MiB available; "
            "ask for a shorter context or a smaller model"
        )


def _linux_available() -> int | None:
    """MemAvailable, or less where a control group allows less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = int(kib) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return available
    return available if limit == "max" else min(available, max(int(limit) - used, 0))


def return_freed_memory() -> None:
    """Hand freed memory back to the system, where the C library keeps it and can be told (glibc).

    Reading a tokenizer leaves 100 MB behind, which would add to whatever is loaded next.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
