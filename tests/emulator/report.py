"""What a launch did and what was wrong with it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

from . import toolchain

KINDS = {
    1: "race",
    2: "bounds",
    3: "uninitialised",
    4: "read-only",
    5: "unwritten",
    6: "misaligned",
    7: "divergent",
    8: "inactive",
    9: "watchdog",
    10: "crash",
    11: "bounds",
    12: "memory-limit",
}


@dataclass(frozen=True)
class Finding:
    """One fault. `kind` is one of KINDS' values, or "lint", "type", "limit"."""

    kind: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        return f"{place}{self.kind}: {self.message}"


class KernelError(Exception):
    """A kernel that broke a rule; `findings` says which, `kinds` are their kinds."""

    def __init__(self, kernel: str, findings: list[Finding]):
        self.kernel = kernel
        self.findings = findings
        self.kinds = {finding.kind for finding in findings}
        super().__init__("\n".join([f"kernel {kernel}:", *(f"  {f}" for f in findings)]))


@dataclass(frozen=True)
class Traffic:
    """Bytes of one buffer.

    `read` and `written` add up what each lane asked for; a value that 32 lanes read counts 32
    times. `group_read` counts a byte once per threadgroup that read it, `unique_read` and
    `unique_written` once per launch.
    """

    size: int
    read: int
    written: int
    group_read: int
    unique_read: int
    unique_written: int


@dataclass(frozen=True)
class LineTraffic:
    """What one source line asked of one buffer, added up over lanes."""

    file: str
    line: int
    buffer: str
    write: bool
    accesses: int
    bytes: int


@dataclass
class Launch:
    """One kernel run over its grid."""

    kernel: str
    call: str  # with its template arguments
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    traffic: dict[str, Traffic]
    threadgroup_arrays: dict[str, int]  # bytes by name, those the launch declared
    findings: list[Finding]
    rendezvous: int  # collectives and barriers carried out
    seconds: float
    library: Path = field(repr=False)
    counts: list[tuple[int, str, bool, int, int]] = field(repr=False)  # (pc, buffer, write, n, b)

    @property
    def threads(self) -> int:
        """Threads per threadgroup."""
        return self.threadgroup[0] * self.threadgroup[1] * self.threadgroup[2]

    @property
    def threadgroup_bytes(self) -> int:
        return sum(self.threadgroup_arrays.values())

    @functools.cached_property
    def lines(self) -> list[LineTraffic]:
        """Accesses by source line and buffer, in source order."""
        places = toolchain.lines_of(self.library, [count[0] for count in self.counts])
        sums: dict[tuple[str, int, str, bool], list[int]] = {}
        for (file, line), (_, buffer, write, accesses, size) in zip(
            places, self.counts, strict=True
        ):
            total = sums.setdefault((file, line, buffer, write), [0, 0])
            total[0] += accesses
            total[1] += size
        return [LineTraffic(*key, *total) for key, total in sorted(sums.items())]


@dataclass
class Report:
    """All launches of a session, in order."""

    launches: list[Launch] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        return [finding for launch in self.launches for finding in launch.findings]

    @property
    def seconds(self) -> float:
        return sum(launch.seconds for launch in self.launches)

    def of(self, kernel: str) -> list[Launch]:
        """The launches of the kernel with this name."""
        return [launch for launch in self.launches if launch.kernel == kernel]
