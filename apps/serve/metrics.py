"""Counts for Prometheus, in its text format (version 0.0.4)."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Observations in buckets; the counts of Prometheus are cumulative."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts = bounds, [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        place = next((i for i, bound in enumerate(self._bounds) if value <= bound), -1)
        self._counts[place] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """The samples."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What has happened since the server began. Counters are written by one thread each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.time()
        self.requests: Counter[tuple[str, int]] = Counter()  # (path, status)
        self.replies: Counter[str] = Counter()  # by how they ended
        self.rejected = 0  # by a full queue
        self.prompt_tokens = 0  # computed
        self.cached_tokens = 0  # of prompts, not computed again
        self.reply_tokens = 0
        self.queue_seconds = Histogram(_SECONDS)
        self.first_token_seconds = Histogram(_SECONDS)
        self.reply_seconds = Histogram(_SECONDS)
        self.step_seconds = Histogram(_SECONDS)
        self.batch_size = Histogram(_BATCH)

    def request(self, path: str, status: int) -> None:
        """Count a response; `path` is one of the routes."""
        with self._lock:
            self.requests[path, status] += 1

    def step(self, replies: int, seconds: float) -> None:
        """Count one step of the batch."""
        self.batch_size.observe(replies)
        self.step_seconds.observe(seconds)
        self.reply_tokens += replies

    def count(self, ended: str, run: "Run") -> None:
        """Count a reply that has `ended` for this reason."""
        self.replies[ended] += 1
        if not run.admitted:
            return
        self.cached_tokens += run.cached
        self.queue_seconds.observe(run.admitted - run.queued)
        if run.first_token:
            self.reply_tokens += 1  # the first comes with the prompt, not with a step
            self.first_token_seconds.observe(run.first_token - run.queued)
            self.reply_seconds.observe(time.perf_counter() - run.queued)

    def render(self, state: dict[str, int]) -> str:
        """All of it; `state` is what the scheduler says of itself."""
        lines = [line for block in self._blocks(state) for line in block]
        return "\n".join(lines) + "\n"

    def _blocks(self, state: dict[str, int]) -> Iterator[list[str]]:
        with self._lock:
            requests = sorted(self.requests.items())
        yield _family(
            "requests_total",
            "counter",
            "HTTP responses.",
            [f'{{path="{path}",status="{code}"}} {count}' for (path, code), count in requests],
        )
        replies = sorted(dict(self.replies).items())
        samples = [f'{{reason="{reason}"}} {count}' for reason, count in replies]
        yield _family("replies_total", "counter", "Replies by how they ended.", samples)
        for name, value, text in (
            ("rejected_total", self.rejected, "Requests refused by a full queue."),
            ("prompt_tokens_total", self.prompt_tokens, "Prompt tokens computed."),
            ("cached_tokens_total", self.cached_tokens, "Prompt tokens known before."),
            ("reply_tokens_total", self.reply_tokens, "Reply tokens."),
        ):
            yield _family(name, "counter", text, [f" {value}"])
        for name, key, text in (
            ("slots", "slots", "Replies that can be written at once."),
            ("slots_busy", "busy", "Replies being written."),
            ("queue_length", "queued", "Replies that wait for a slot."),
            ("kv_cache_tokens", "kv_tokens", "Tokens in the KV caches."),
            ("kv_cache_bytes", "kv_bytes", "Bytes of keys and values of these tokens."),
        ):
            yield _family(name, "gauge", text, [f" {state[key]}"])
        started = [f" {self._started:.3f}"]
        yield _family("start_time_seconds", "gauge", "When the server began.", started)
        for name, histogram, text in (
            ("queue_seconds", self.queue_seconds, "From the request to a slot."),
            ("first_token_seconds", self.first_token_seconds, "From the request to a token."),
            ("reply_seconds", self.reply_seconds, "From the request to the reply's end."),
            ("step_seconds", self.step_seconds, "One step of the batch."),
            ("batch_size", self.batch_size, "Replies in one step."),
        ):
            head = _family(name, "histogram", text, [])
            yield [*head, *histogram.lines(f"pippin_{name}")]


def _family(name: str, kind: str, text: str, samples: list[str]) -> list[str]:
    name = f"pippin_{name}"
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{sample}" for sample in samples]
