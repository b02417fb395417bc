"""The process that `bench` measures in: a task as JSON on stdin, figures as JSON on stdout."""

import time

_STARTED = time.perf_counter()  # before anything heavy is imported: imports are part of loading

import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any, TypeVar  # noqa: E402

from ..runtime.errors import InputError, PippinError  # noqa: E402

if TYPE_CHECKING:
    from ..runtime.engine import Array, Choose, Engine

Rate = Callable[[], float]  # one run; its tokens per second
Result = TypeVar("Result")

_BUDGET = 60.0  # seconds for the rounds of one figure
_LONG_RUN = 10.0  # seconds; what takes longer needs no warm-up


def main() -> None:
    """Answer one task."""
    task = json.load(sys.stdin)
    try:
        answer = _answer(task)
    except PippinError as error:
        answer = {"error": str(error), "bad_input": isinstance(error, InputError)}
    print(json.dumps(answer))


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    from .models import load_generator

    generator = load_generator(
        task["path"], task["backend"], weights=task["weights"], threads=task["threads"], fetch=False
    )
    engine = generator.engine
    _decoding(engine, 1, 1)()
    answer: dict[str, Any] = {"load_seconds": time.perf_counter() - _STARTED}
    if task["what"] == "speed":
        answer |= _speeds(engine, task["rounds"])
    return answer


def _speeds(engine: "Engine", rounds: int) -> dict[str, Any]:
    """Tokens per second of each round; empty where it does not fit the context."""
    from .bench import BATCH, DECODED, LONG, PREFILL, SHORT

    context = engine.info.context
    names = ("prefill", "decode_short", "decode_long", "decode_batch", "batch_ratio")
    answer: dict[str, Any] = {name: [] for name in names}
    if context >= PREFILL:
        answer["prefill"] = _repeat(_prefilling(engine, PREFILL), rounds)
    for name, length in (("decode_short", SHORT), ("decode_long", LONG)):
        if context > length + DECODED:
            answer[name] = _repeat(_decoding(engine, length, DECODED), rounds)
    answer["peak_bytes"] = peak_bytes()  # of one sequence at a time
    if context > SHORT + DECODED:
        single = _decoding(engine, SHORT, DECODED)
        together = _decoding_together(engine, BATCH, SHORT, DECODED)
        pairs = _repeat(lambda: (single(), together()), rounds)
        answer["decode_batch"] = [batch for _, batch in pairs]
        answer["batch_ratio"] = [batch / alone for alone, batch in pairs]
    answer["weight_bytes"] = engine.info.weight_bytes
    return answer


def _repeat(run: Callable[[], Result], rounds: int) -> list[Result]:
    """Results of `rounds` runs after one for warm-up; where a run takes very long, of fewer."""
    started = time.perf_counter()
    first = run()
    rates = [first] if time.perf_counter() - started > _LONG_RUN else []
    while not rates or (len(rates) < rounds and time.perf_counter() - started < _BUDGET):
        rates.append(run())
    return rates


def _prefilling(engine: "Engine", length: int) -> Rate:
    """Tokens per second of `length` tokens into an empty cache."""
    prompt = _tokens(engine, length)

    def run() -> float:
        session = engine.open(length)
        started = time.perf_counter()
        session.prefill(prompt)
        return length / (time.perf_counter() - started)

    return run


def _decoding(engine: "Engine", length: int, count: int) -> Rate:
    """Tokens per second of `count` greedy tokens after `length` others."""
    session, choose = engine.open(length + count + 2), _greedy(engine)
    logits = session.prefill(_tokens(engine, length))

    def run() -> float:
        session.rollback(length)
        tokens = session.decode(logits, choose)
        next(tokens)  # chosen from the prompt's logits, not yet decoded
        started = time.perf_counter()
        for _ in range(count):
            next(tokens)
        rate = count / (time.perf_counter() - started)
        tokens.close()
        return rate

    return run


def _decoding_together(engine: "Engine", size: int, length: int, count: int) -> Rate:
    """Tokens per second, all together, of `count` greedy tokens in each of `size` sequences."""
    batch = engine.open_batch(size, length + count + 1)
    sessions = [batch.open() for _ in range(size)]
    for session in sessions:
        session.prefill(_tokens(engine, length))

    def run() -> float:
        for session in sessions:
            session.rollback(length)
        tokens = [0] * size
        started = time.perf_counter()
        for _ in range(count):
            tokens = batch.step(sessions, tokens).argmax(-1).tolist()
        return size * count / (time.perf_counter() - started)

    return run


def _greedy(engine: "Engine") -> "Choose":
    xp = engine.xp

    def choose(logits: "Array", _: int) -> "Array":
        return xp.argmax(logits).astype(xp.int32)

    return choose


def _tokens(engine: "Engine", count: int) -> list[int]:
    """The same arbitrary tokens in each process: speed does not depend on which."""
    from random import Random

    return Random(count).choices(range(engine.info.vocab_size), k=count)


def peak_bytes() -> int | None:
    """Largest resident set of this process so far; None where the system does not tell.

    Linux hands `ru_maxrss` on from the process that started this one; its VmHWM is our own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


if __name__ == "__main__":
    main()
