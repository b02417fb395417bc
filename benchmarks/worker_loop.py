"""The worker's side of the line protocol, and what is timed: the same for every contestant.

A worker runs in its peer's own environment, so this file imports the standard library alone.
One JSON request a line comes in on stdin, one JSON answer a line goes out on stdout:

    {"do": "load", "model": PATH, "threads": 2, "capacity": 2200, ...}  -> seconds, and about it
    {"do": "prefill", "tokens": [...]}                                  -> seconds
    {"do": "decode", "tokens": [...], "count": 64}                      -> seconds, tokens

Each answer also has `peak_rss` (bytes), or it is {"error": TEXT}.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol


class Contestant(Protocol):
    """What runs a model; every call returns when its result is there."""

    def load(self, model: str, threads: int, capacity: int, **options: Any) -> dict[str, str | int]:
        """Load the model for sequences of `capacity` tokens.

        Returns what is to be known about it: `version` and `kv_bytes_per_token`.
        """

    def open(self) -> None:
        """Start an empty sequence in place of the last one."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append the prompt and compute its last token's logits."""

    def next(self) -> int:
        """Choose the likeliest next token; all calls but the first run one step before."""


def serve(contestant: Contestant) -> None:
    """Answer requests until stdin closes."""
    # The libraries may print: give them stderr, and keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        _send(answers, _answer(contestant, json.loads(line)))


def _answer(contestant: Contestant, request: dict[str, Any]) -> dict[str, Any]:
    actions = {"load": _load, "prefill": _prefill, "decode": _decode}
    action = actions[request.pop("do")]
    try:
        answer = action(contestant, **request)
    except Exception as error:  # whatever a peer raises is reported, not fatal to the run
        return {"error": f"{type(error).__name__}: {error}"}
    return answer | {"peak_rss": peak_rss()}


def _send(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _load(contestant: Contestant, **options: Any) -> dict[str, Any]:
    start = time.perf_counter()
    about = contestant.load(**options)
    return {"seconds": time.perf_counter() - start} | about


def _prefill(contestant: Contestant, tokens: list[int]) -> dict[str, Any]:
    contestant.open()
    contestant.prefill(tokens[: max(len(tokens) // 8, 1)])  # wakes caches and threads
    contestant.open()
    start = time.perf_counter()
    contestant.prefill(tokens)
    return {"seconds": time.perf_counter() - start}


def _decode(contestant: Contestant, tokens: list[int], count: int) -> dict[str, Any]:
    """`count` steps are timed; the first token costs no step, so it comes before the clock."""
    contestant.open()
    contestant.prefill(tokens)
    chosen = [contestant.next()]
    start = time.perf_counter()
    for _ in range(count):
        chosen.append(contestant.next())
    return {"seconds": time.perf_counter() - start, "tokens": chosen}


def peak_rss() -> int:
    """The most memory this process has held, in bytes."""
    try:
        # Not ru_maxrss on Linux: that starts at the size of the process that forked this one.
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
