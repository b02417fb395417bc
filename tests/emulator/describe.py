"""Findings of the runtime, put into words with the lines they are about."""

from pathlib import Path

from . import toolchain
from .buffers import Memory
from .native import NO_THREAD, THREADGROUP, RawFinding
from .report import KINDS, Finding


def describe(
    found: list[RawFinding],
    library: Path,
    memories: list[Memory],
    arrays: list[str],
    texts: dict[str, str],
) -> list[Finding]:
    """The findings of a launch. `arrays` are the names of its threadgroup arrays, `texts` the
    sources by file name."""
    if not found:
        return []
    addresses = [f.pc for f in found] + [f.other_pc for f in found]
    places = toolchain.lines_of(library, addresses, nearby=True)
    result = []
    for f, here, there in zip(found, places[: len(found)], places[len(found) :], strict=True):
        kind = KINDS[f.kind]
        if kind == "divergent" and here == there:
            continue  # the compiler's two copies of one source line
        message = _message(f, there, memories, arrays) + _quoted(here, texts)
        result.append(Finding(kind, message, *here))
    return result


def buffer_name(index: int, memories: list[Memory], arrays: list[str]) -> str:
    if index >= THREADGROUP:
        return arrays[index - THREADGROUP]
    return memories[index].name if index >= 0 else ""


def _message(
    f: RawFinding, there: tuple[str, int], memories: list[Memory], arrays: list[str]
) -> str:
    name = buffer_name(f.buffer, memories, arrays)
    where = ""
    if 0 <= f.buffer < THREADGROUP:
        where = f" at {memories[f.buffer].element(f.offset)}"
    elif f.buffer >= THREADGROUP:
        where = f" at byte {f.offset}"
    what = f"{'write' if f.write else 'read'} of {name}{where}" if name else ""
    who = f"thread {f.lane} of threadgroup {tuple(f.group)}"
    other = f"thread {f.other_lane}" if f.other_lane != NO_THREAD else "another thread"
    line = f"{there[0]}:{there[1]}" if there[0] else "elsewhere"
    stopped = f"at {line}" if there[0] else "has returned"
    return {
        "race": f"{what} by {who} and an access of {other} at {line}, with no barrier between",
        "bounds": f"{what or 'an index'} is outside, by {who}",
        "uninitialised": f"{what} before any write, by {who}",
        "read-only": f"{what}, which is an input, by {who}",
        "unwritten": f"{f.count} elements of {name} are never written, the first{where}",
        "misaligned": f"{what} of {f.size} bytes at an address that is no multiple of it, by {who}",
        "divergent": f"{who} waits here, {other} {stopped}",
        "inactive": f"a collective reads a thread that does not take part, by {who}",
        "watchdog": f"the launch was stopped in {who}, it takes too long",
        "crash": f"a machine fault in {who}: wild or misaligned pointer, or division by zero",
        "memory-limit": f"{f.size} bytes of threadgroup memory, the limit is 32768",
    }[KINDS[f.kind]]


def _quoted(place: tuple[str, int], texts: dict[str, str]) -> str:
    lines = texts.get(place[0], "").splitlines()
    return f"\n      {lines[place[1] - 1].strip()}" if 0 < place[1] <= len(lines) else ""
