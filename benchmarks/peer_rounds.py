"""The rounds: who is asked what in which order, and what is kept of the answers."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from peer_worker import Contestant, WorkerError

_LONG, _VERY_LONG = 1024, 4096  # tokens of context after which fewer tokens are decoded
_FIRST = 50  # tokens of the prompt whose reply's first token is waited for
_PIECE = 64  # tokens of the quality text in one call


@dataclass(frozen=True)
class Metric:
    """One thing that is timed in each round."""

    name: str
    do: str  # the request: "prefill", "decode" or "first"
    tokens: list[int]  # the prompt, the same ids for all
    count: int  # tokens whose time is taken
    unit: str = "tok/s"  # or "s", of which fewer are better
    only: Collection[str] | None = None  # the contestants that are asked; None: all

    def request(self) -> dict[str, Any]:
        extra = {"count": self.count} if self.do == "decode" else {}
        return {"do": self.do, "tokens": self.tokens} | extra

    def asks(self, contestant: Contestant) -> bool:
        return self.only is None or contestant.name in self.only


@dataclass
class Result:
    """What came of one contestant."""

    contestant: Contestant
    about: dict[str, Any] = field(default_factory=dict)  # its answer to "load"
    speeds: dict[str, list[float]] = field(default_factory=dict)  # tokens/s a round, by metric
    replies: dict[str, list[list[int]]] = field(default_factory=dict)  # tokens a round, by metric
    peak_rss: int = 0  # bytes, of loading and of the rounds
    failure: str = ""
    quality: dict[str, Any] = field(default_factory=dict)  # see `worker_quality.measure`


class Asked(Protocol):
    """What the rounds need of a `peer_worker.Worker`."""

    contestant: Contestant

    def ask(self, do: str, **request: Any) -> dict[str, Any]: ...

    def close(self) -> None: ...


def make_metrics(
    text: list[int], sizes: dict[str, Any], curve: Sequence[int], followed: Collection[str]
) -> list[Metric]:
    """First token, prefill of each of `sizes["prefill"]`, decode after each of `sizes["context"]`.

    Decode after each of `curve` is asked of the contestants `followed` alone. The longest context
    comes first: each shorter one is the beginning of what a contestant holds already.
    """
    metrics = [Metric(f"first token after {_FIRST}", "first", text[:_FIRST], 1, "s")]
    metrics += [Metric(f"prefill {n}", "prefill", text[:n], n) for n in sizes["prefill"]]
    for length in sorted({*sizes["context"], *(curve if followed else ())}, reverse=True):
        count = max(sizes["decode"] // (1 + (length >= _LONG) + 2 * (length >= _VERY_LONG)), 1)
        only = None if length in sizes["context"] else followed
        metrics.append(Metric(decode_name(length), "decode", text[:length], count, only=only))
    return metrics


def decode_name(length: int) -> str:
    """The metric of decoding after `length` tokens."""
    return f"decode after {length}"


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
    """Load all, then measure them in turn, metric by metric, each `rounds` times.

    Speeds of one round and metric are taken one right after the other, so that what else the
    machine does meets all alike. A contestant that fails is asked no more.
    """
    results = [Result(worker.contestant) for worker in workers]
    for worker, result in zip(workers, results, strict=True):
        note(f"loading {worker.contestant.name}")
        result.about = _ask(worker, result, "load", **worker.contestant.load, **load)
    for metric in metrics:
        places = [i for i, worker in enumerate(workers) if metric.asks(worker.contestant)]
        for index in range(rounds):
            note(f"{metric.name}: round {index + 1} of {rounds}")
            for place in order_of_round(len(places), index):
                _measure(workers[places[place]], results[places[place]], metric)
    return results


def measure_quality(
    workers: Sequence[Asked],
    results: Sequence[Result],
    tokens: list[int],
    reference: str,
    note: Callable[[str], None],
) -> None:
    """Score what each contestant makes of `tokens`, beside the logits in the file `reference`.

    Pippin's is scored by single steps as well: a graph may decode by other kernels or weights
    than it reads a prompt with. What fails is left out and noted.
    """
    for worker, result in zip(workers, results, strict=True):
        if result.failure:
            continue
        note(f"quality of {worker.contestant.name}")
        request = {"tokens": tokens, "reference": reference}
        try:
            result.quality = worker.ask("quality", piece=_PIECE, **request)
            if not worker.contestant.peer and worker.contestant.load.get("backend") == "onnx":
                steps = worker.ask("quality", piece=1, **request)
                result.quality["stepped"] = steps["perplexity"]
        except WorkerError as error:
            result.quality = {}
            note(f"{worker.contestant.name}: {error}")


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
