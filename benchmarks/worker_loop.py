"""The worker's side of the line protocol, and what is timed: the same for every contestant.

A worker runs in its peer's own environment, so this file imports the standard library alone.
One JSON request a line comes in on stdin, one JSON answer a line goes out on stdout:

    {"do": "load", "model": PATH, "threads": 2, "capacity": 7100, ...}  -> seconds, and about it
    {"do": "prefill", "tokens": [...]}                                  -> seconds
    {"do": "decode", "tokens": [...], "count": 64}                      -> seconds, tokens
    {"do": "first", "tokens": [...]}                                    -> seconds
    {"do": "quality", "tokens": [...], "reference": FILE, "piece": 64}  -> see `worker_quality`

Each answer also has `peak_rss` (bytes), or it is {"error": TEXT}.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

Action = Callable[..., dict[str, Any]]


class Contestant(Protocol):
    """What runs a model; every call returns when its result is there."""

    def load(self, model: str, threads: int, capacity: int, **options: Any) -> dict[str, str | int]:
        """Load the model for sequences of `capacity` tokens.

        Returns what is to be known about it: `version` and `kv_bytes_per_token`.
        """

    def open(self) -> None:
        """Start an empty sequence in place of the last one."""

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens of the sequence."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens and compute the last one's logits."""

    def next(self) -> int:
        """Choose the likeliest next token; all calls but the first run one step before."""

    # and, where its interface gives them (numpy arrays),
    #   logits(tokens) -> [L, V]: append `tokens`, the logits of each


def serve(contestant: Contestant, **actions: Action) -> None:
    """Answer requests until stdin closes; `actions` replace or add to those of `Steps`."""
    steps = Steps(contestant)
    names = ("load", "prefill", "decode", "first", "quality")
    actions = {name: getattr(steps, name) for name in names} | actions
    # The libraries may print: give them stderr, and keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        _send(answers, _answer(actions[request.pop("do")], request))


def _answer(action: Action, request: dict[str, Any]) -> dict[str, Any]:
    try:
        answer = action(**request)
    except Exception as error:  # whatever a peer raises is reported, not fatal to the run
        return {"error": f"{type(error).__name__}: {error}"}
    return answer | {"peak_rss": peak_rss()}


def _send(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


class Steps:
    """What is timed of a contestant that runs token by token.

    The sequence stays between two requests: what a prompt shares with it is not computed again,
    unless it is prefill that is timed.
    """

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._held: list[int] = []  # the tokens of its sequence

    def load(self, **options: Any) -> dict[str, Any]:
        start = time.perf_counter()
        about = self._contestant.load(**options)
        seconds = time.perf_counter() - start
        self._contestant.open()
        return {"seconds": seconds} | about

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        self._fresh(tokens[: max(len(tokens) // 8, 1)])  # wakes caches and threads
        return {"seconds": self._fresh(tokens)}

    def decode(self, tokens: list[int], count: int) -> dict[str, Any]:
        """`count` steps are timed; the first token costs no step, so it comes before the clock."""
        contestant = self._contestant
        shared = common_prefix(tokens[:-1], self._held)
        contestant.keep(shared)
        self._held = []  # until it is known what is there
        contestant.prefill(tokens[shared:])
        chosen = [contestant.next()]
        start = time.perf_counter()
        for _ in range(count):
            chosen.append(contestant.next())
        seconds = time.perf_counter() - start
        self._held = [*tokens, *chosen[:-1]]
        return {"seconds": seconds, "tokens": chosen}

    def first(self, tokens: list[int]) -> dict[str, Any]:
        """To the first token of the reply, by an engine that has run before."""
        self._fresh(tokens)
        self._contestant.open()
        start = time.perf_counter()
        self._contestant.prefill(tokens)
        self._contestant.next()
        return {"seconds": time.perf_counter() - start}

    def quality(self, **request: Any) -> dict[str, Any]:
        if not hasattr(self._contestant, "logits"):
            return {"perplexity": None}
        from worker_quality import measure

        self._contestant.open()
        self._held = []
        return measure(self._contestant.logits, **request)

    def _fresh(self, tokens: list[int]) -> float:
        """Seconds that `tokens` take on an empty sequence."""
        self._contestant.open()
        self._held = []
        start = time.perf_counter()
        self._contestant.prefill(tokens)
        seconds = time.perf_counter() - start
        self._held = list(tokens)
        return seconds


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens agree from the start."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


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
