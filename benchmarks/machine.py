"""Where a benchmark runs, and whether it had the machine to itself."""

import contextlib
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

from pippin.runtime.cores import physical_cores


def describe() -> str:
    """Processor, cores, system and Python."""
    return (
        f"{_processor()}, {physical_cores()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


class Watch:
    """Measures how much of the CPU other programs take, from its making to `others()`."""

    def __init__(self) -> None:
        self._start = (time.monotonic(), _busy_seconds(), _own_seconds())

    def others(self) -> float | None:
        """Share of all CPUs' time that others took, 0…1; None where the system does not tell.

        Child processes count as ours once they have ended.
        """
        if self._start[1] is None:
            return None
        now = (time.monotonic(), _busy_seconds(), _own_seconds())
        elapsed, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return min(max((busy - own) / (elapsed * os.cpu_count()), 0.0), 1.0)


def _busy_seconds() -> float | None:
    """Seconds that all CPUs together have worked since the system started (Linux)."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU seconds of this process and of those of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _processor() -> str:
    """Its name as the system has it, or else its architecture."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        return model.partition(":")[2].strip()
    return platform.machine()
