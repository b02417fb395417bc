"""How many threads a computation should use here."""

import os
import subprocess
import sys
from pathlib import Path


def physical_cores() -> int:
    """Cores this process may use: one per hyperthread pair, fast ones, within a CPU quota."""
    if sys.platform == "linux":
        return max(1, min(_linux_cores(), _linux_quota()))
    if sys.platform == "darwin":
        # Efficiency cores would only be waited for.
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode == 0:
            return max(1, int(answer.stdout))
    return os.cpu_count() or 1


def _linux_cores() -> int:
    cpus = os.sched_getaffinity(0)
    pairs = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            pairs.add(siblings.read_text())
        except OSError:
            return len(cpus)
    return len(pairs)


def _linux_quota(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Whole CPUs that the control group's quota is worth; many when there is none."""
    try:
        quota, period = limit.read_text().split()
        return int(quota) // int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return sys.maxsize
