"""How fast and how large each backend is, each measured in a fresh process of its own."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.errors import InputError, PippinError
from .models import Stages, has_mlx, is_exported, prepare

if TYPE_CHECKING:
    from .bench_machine import Machine

PREFILL = 512  # tokens
SHORT, LONG = 16, 2048  # tokens in the cache when decoding starts
DECODED = 64  # tokens timed in each decoding round
BATCH = 8  # sequences that decode together

# called with a line that says what is being measured now
Report = Callable[[str], None]


def bench(
    name: str,
    backends: Sequence[str] = (),
    *,
    rounds: int = 5,
    weights: str | None = None,
    threads: int | None = None,
    fetch: bool = True,
    stages: Stages | None = None,
    report: Report | None = None,
) -> list["Measurement"]:
    """Measure the model `name` on `backends` (none: every one that can run it here).

    Downloading and exporting are done before anything is measured. `weights` and `threads` are
    for onnx. Raises InputError as `models.prepare` does, and for fewer than 1 round.
    """
    check_rounds(rounds)
    if not backends:
        mlx = has_mlx() and not is_exported(Path(name).expanduser())
        backends = ("mlx", "onnx") if mlx else ("onnx",)
    tasks = []
    for backend in dict.fromkeys(backends):
        # With mlx alone, options that it does not have are refused; beside onnx, they are onnx's.
        onnx_only = {"weights": weights, "threads": threads}
        options = onnx_only if backend == "onnx" or len(set(backends)) == 1 else {}
        path, _ = prepare(name, backend, fetch=fetch, stages=stages, **options)
        tasks.append(Task(str(path), backend, rounds, **options))
    machine = None
    if any(task.backend == "onnx" for task in tasks):
        from .bench_machine import measure_machine

        machine = measure_machine(threads, rounds=5, report=report)
    return [_measure(task, machine, report) for task in tasks]


def check_rounds(rounds: int) -> None:
    """Raise InputError for fewer than 1 round."""
    if rounds < 1:
        raise InputError(f"{rounds} rounds were asked for; give at least 1")


@dataclass(frozen=True)
class Task:
    """What one process measures."""

    path: str  # a checkpoint for "mlx", an exported folder for "onnx"
    backend: str
    rounds: int
    weights: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Figure:
    """The median of several rounds, and their extremes."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Limit:
    """What no program could exceed on this machine, and how near the median comes to it."""

    rate: float  # tokens per second
    share: float  # 0…1; above where a good part of the weights stays in the caches


@dataclass(frozen=True)
class Measurement:
    """One backend's figures; None where the model's context is too short."""

    backend: str
    load_seconds: Figure  # importing, opening and a first token; a new process each round
    prefill: Figure | None  # tokens per second, PREFILL tokens into an empty cache
    decode_short: Figure | None  # tokens per second after SHORT tokens
    decode_long: Figure | None  # tokens per second after LONG tokens
    decode_batch: Figure | None  # tokens per second of BATCH sequences together, after SHORT each
    batch_ratio: Figure | None  # that over a single sequence's, measured in turn with it
    peak_bytes: int | None  # largest resident set; None where the system does not tell
    weight_bytes: int
    limits: dict[str, Limit]  # by the names of the figures; those that are known


def _measure(task: Task, machine: "Machine | None", report: Report | None) -> Measurement:
    """Run `task` in fresh processes: one a round for loading, and one for everything else."""
    loads = []
    for index in range(task.rounds):
        if report:
            report(f"{task.backend}: loading, {index + 1} of {task.rounds}")
        loads.append(_run(task, "load")["load_seconds"])
    if report:
        report(f"{task.backend}: prefill and decoding, {task.rounds} rounds")
    answer = _run(task, "speed")
    rates = _limits(task, machine) if machine else {}
    return Measurement(
        backend=task.backend,
        load_seconds=figure([*loads, answer["load_seconds"]]),
        prefill=_optional(answer["prefill"]),
        decode_short=_optional(answer["decode_short"]),
        decode_long=_optional(answer["decode_long"]),
        decode_batch=_optional(answer["decode_batch"]),
        batch_ratio=_optional(answer["batch_ratio"]),
        peak_bytes=answer["peak_bytes"],
        weight_bytes=answer["weight_bytes"],
        limits={
            name: Limit(rate, statistics.median(answer[name]) / rate)
            for name, rate in rates.items()
            if answer[name]
        },
    )


def _limits(task: Task, machine: "Machine") -> dict[str, float]:
    """Tokens per second that the machine's rates allow, as far as they are known.

    A step reads all weights once and the whole cache of each sequence; prefill multiplies.
    """
    from ..runtime.folder import open_folder
    from ..runtime.ort_seq2seq import is_exported_seq2seq
    from .bench_machine import FP32, INT8, READ
    from .graph_costs import graph_costs

    path = Path(task.path)
    if task.backend != "onnx" or is_exported_seq2seq(path):
        return {}
    costs = graph_costs(open_folder(path, task.weights).graph)
    if costs is None:
        return {}
    read, middle = machine.rate(READ), DECODED / 2
    return {
        "prefill": 1 / costs.prefill_seconds(PREFILL, machine.rate(FP32), machine.rate(INT8)),
        "decode_short": read / costs.step_bytes(SHORT + middle),
        "decode_long": read / costs.step_bytes(LONG + middle),
        "decode_batch": BATCH * read / costs.step_bytes(SHORT + middle, BATCH),
    }


def figure(values: Sequence[float]) -> Figure:
    """Median and extremes of at least one value."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def _optional(values: list[float]) -> Figure | None:
    return figure(values) if values else None


def _run(task: Task, what: str) -> dict[str, Any]:
    """One child process: the task on its stdin, its answer as JSON on its stdout.

    Raises what the child raised, with its message.
    """
    request = json.dumps({"what": what, **asdict(task)})
    child = subprocess.run(
        [sys.executable, "-m", f"{__package__}.bench_worker"],
        input=request.encode(),
        capture_output=True,
        check=False,
    )
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {child.returncode}"
        raise PippinError(f"measuring {task.backend} failed: {reason}") from None
    if message := answer.get("error"):
        raise (InputError if answer["bad_input"] else PippinError)(message)
    return answer
