"""Executes Metal kernels written for `mx.fast.metal_kernel` on a machine without Metal."""

from .report import Finding, KernelError, Launch, Report, Traffic
from .session import emulate, emulated
from .toolchain import OLDEST, find_clang

SKIP_REASON = f"skipped, because no clang ≥ {OLDEST} is on this machine (Debian: clang-19)"

__all__ = [
    "SKIP_REASON",
    "Finding",
    "KernelError",
    "Launch",
    "Report",
    "Traffic",
    "emulate",
    "emulated",
    "find_clang",
]
