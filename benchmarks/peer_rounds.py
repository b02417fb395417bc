"""The rounds: who is asked what in which order, and what is kept of the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from peer_worker import Contestant, WorkerError


@dataclass(frozen=True)
class Metric:
    """One thing that is timed in each round."""

    name: str
    do: str  # the request: "prefill" or "decode"
    tokens: list[int]  # the prompt, the same ids for all
    count: int  # tokens whose time is taken

    def request(self) -> dict[str, Any]:
        extra = {"count": self.count} if self.do == "decode" else {}
        return {"do": self.do, "tokens": self.tokens} | extra


@dataclass
class Result:
    """What came of one contestant."""

    contestant: Contestant
    about: dict[str, Any] = field(default_factory=dict)  # its answer to "load"
    speeds: dict[str, list[float]] = field(default_factory=dict)  # tokens/s a round, by metric
    replies: dict[str, list[list[int]]] = field(default_factory=dict)  # tokens a round, by metric
    peak_rss: int = 0  # bytes
    failure: str = ""


class Asked(Protocol):
    """What the rounds need of a `peer_worker.Worker`."""

    contestant: Contestant

    def ask(self, do: str, **request: Any) -> dict[str, Any]: ...

    def close(self) -> None: ...


def make_metrics(short: list[int], long: list[int], sizes: dict[str, int]) -> list[Metric]:
    """Prefill of `prefill` tokens; decode of `decode` tokens after `short` and after `context`."""
    prefill, context, decode = sizes["prefill"], sizes["context"], sizes["decode"]
    return [
        Metric(f"prefill {prefill}", "prefill", long[:prefill], prefill),
        Metric(f"decode {decode} after {len(short)}", "decode", short, decode),
        Metric(f"decode {decode} after {context}", "decode", long[:context], decode),
    ]


def order_of_round(count: int, index: int) -> list[int]:
    """Round `index`'s order of `count` contestants: each goes first in turn."""
    return [(index + place) % count for place in range(count)]


def run_rounds(
    workers: Sequence[Asked],
    metrics: Sequence[Metric],
    rounds: int,
    load: dict[str, Any],
    note: Callable[[str], None],
) -> list[Result]:
    """Load all, then measure them in turn, metric by metric, `rounds` times.

    Speeds of one round and metric are taken one right after the other, so that what else the
    machine does meets all alike. A contestant that fails is asked no more.
    """
    results = [Result(worker.contestant) for worker in workers]
    for worker, result in zip(workers, results, strict=True):
        note(f"loading {worker.contestant.name}")
        result.about = _ask(worker, result, "load", **worker.contestant.load, **load)
    for index in range(rounds):
        for metric in metrics:
            note(f"round {index + 1} of {rounds}: {metric.name}")
            for place in order_of_round(len(workers), index):
                _measure(workers[place], results[place], metric)
    return results


def _measure(worker: Asked, result: Result, metric: Metric) -> None:
    if result.failure:
        return
    answer = _ask(worker, result, **metric.request())
    if answer:
        result.speeds.setdefault(metric.name, []).append(metric.count / answer["seconds"])
        if "tokens" in answer:
            result.replies.setdefault(metric.name, []).append(answer["tokens"])


def _ask(worker: Asked, result: Result, do: str, **request: Any) -> dict[str, Any]:
    """The answer, or {} after a failure, which is noted."""
    try:
        answer = worker.ask(do, **request)
    except WorkerError as error:
        result.failure = str(error)
        worker.close()
        return {}
    result.peak_rss = max(result.peak_rss, answer["peak_rss"])
    return answer
