"""What Pippin has that is compared with itself: a batch, prompt lookup, the time of its import."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from peer_report import ratios, summarize
from peer_rounds import Asked
from peer_tables import spread, table
from peer_worker import WorkerError

from pippin.apps.parity_text import TEXT

_SLOTS, _PROMPT = 8, 64  # sequences of a batch; tokens that each holds before it decodes
_DRAFT = 8  # tokens, the longest draft of prompt lookup
_SEEDED = {"temperature": 0.7, "seed": 1}  # beside greedy
_IMPORT = (
    "import time; start = time.perf_counter(); import pippin.runtime.generator, "
    "pippin.runtime.ort_engine; print(time.perf_counter() - start)"
)
_CODE = """\
def sell(stock, name, count):
    if name not in stock:
        raise KeyError(f"there are no {name}")
    if stock[name] < count:
        raise ValueError(f"only {stock[name]} of {name} are left")
    stock[name] -= count
    return count * PRICES[name]


def buy(stock, name, count):
    stock[name] = stock.get(name, 0) + count
    return -count * COSTS[name]
"""
_PROSE = "\n\n".join(TEXT.split("\n\n")[:2])
# name -> (prompt, whether it is a turn of a chat); replies to the first two repeat the prompt
_TEXTS = {
    "a text begun again": (f"{_PROSE}\n\n{_PROSE[:500]}", False),
    "a code edit": (
        f"Rename the function sell to deliver and print all of the code:\n\n{_CODE}",
        True,
    ),
    "a story": ("Tell me a story about a lighthouse that nobody has lived in for years.", True),
}


def measure_own(
    workers: Sequence[Asked], text: list[int], rounds: int, count: int, note: Callable[[str], None]
) -> dict[str, Any]:
    """The figures of Pippin's `workers` on onnxruntime, prompt lookup on the first of them alone.

    `count` tokens are decoded in a batch, twice as many with prompt lookup. A part that fails has
    its reason in "failed", and the others go on.
    """
    own = [w for w in workers if w.contestant.load.get("backend") == "onnx"]
    report: dict[str, Any] = {"batch": [], "lookup": [], "failed": {}}
    for part, measure in (("batch", _measure_batch), ("lookup", _measure_lookup)):
        for worker in own if part == "batch" else own[:1]:
            name = worker.contestant.name
            try:
                report[part] += measure(worker, text, rounds, count, note)
            except WorkerError as error:
                report["failed"][f"{name}, {part}"] = str(error)
    if own:
        note("import")
        report["import_seconds"] = summarize([_import_seconds() for _ in range(rounds)])
    return report


def _measure_batch(
    worker: Asked, text: list[int], rounds: int, count: int, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    prompts = [text[i * _PROMPT : (i + 1) * _PROMPT] for i in range(_SLOTS)]
    answers = []
    for index in range(rounds):
        note(f"batch of {_SLOTS} on {worker.contestant.name}: round {index + 1} of {rounds}")
        answers.append(worker.ask("batch", prompts=prompts, count=count))
    alone = [count / answer["alone"] for answer in answers]
    together = [_SLOTS * count / answer["together"] for answer in answers]
    row = {
        "name": worker.contestant.name,
        "slots": _SLOTS,
        "alone": summarize(alone),
        "together": summarize(together),
        "ratio": summarize(ratios(together, alone)),
        "same": all(answer["same"] for answer in answers),
    }
    return [row]


def _measure_lookup(
    worker: Asked, _: list[int], rounds: int, count: int, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = []
    for name, (prompt, chat) in _TEXTS.items():
        for how, sampling in (("greedy", {}), ("seeded", _SEEDED)):
            note(f"prompt lookup on {worker.contestant.name}: {name}, {how}")
            request = {"prompt": prompt, "chat": chat, "max_tokens": 2 * count} | sampling
            answers: dict[int, list[dict[str, Any]]] = {0: [], _DRAFT: []}
            for index in range(rounds):
                for longest in (0, _DRAFT) if index % 2 else (_DRAFT, 0):
                    answer = worker.ask("lookup", prompt_lookup=longest, **request)
                    answers[longest].append(answer)
            rows.append(_lookup_row(worker.contestant.name, name, how, *answers.values()))
    return rows


def _lookup_row(
    worker: str, text: str, how: str, off: list[dict[str, Any]], on: list[dict[str, Any]]
) -> dict[str, Any]:
    rates = [[answer["rate"] for answer in answers] for answers in (off, on)]
    drafted = statistics.median(answer["drafted"] for answer in on)
    accepted = statistics.median(answer["accepted"] for answer in on)
    return {
        "name": worker,
        "text": text,
        "how": how,
        "off": summarize(rates[0]),
        "on": summarize(rates[1]),
        "ratio": summarize(ratios(rates[1], rates[0])),
        "drafted": drafted,
        "accepted": accepted,
        "tokens": len(on[0]["tokens"]),
        "same": all(answer["tokens"] == off[0]["tokens"] for answer in [*off, *on]),
    }


def _import_seconds() -> float:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True)
    return float(done.stdout)


def render_own(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    parts = []
    if report["batch"]:
        parts += [
            f"Decoding {_SLOTS} sequences in one batch, tokens per second of all together, beside "
            f"one alone ({_PROMPT} tokens in each before):",
            _batch_table(report["batch"]),
        ]
    if report["lookup"]:
        parts += [
            f"Prompt lookup (drafts of up to {_DRAFT} tokens), off and on, tokens per second:",
            _lookup_table(report["lookup"]),
        ]
    if "import_seconds" in report:
        seconds = spread(report["import_seconds"], 2)
        parts.append(f"Importing the runtime, onnxruntime included: {seconds} s.")
    if report["failed"]:
        parts.append("\n".join(f"- {name}: {why}" for name, why in report["failed"].items()))
    return "\n\n".join(parts) + "\n" if parts else ""


def _batch_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            row["name"],
            spread(row["alone"], 1),
            spread(row["together"], 1),
            spread(row["ratio"], 2),
            "yes" if row["same"] else "no",
        ]
        for row in rows
    ]
    return table(["", "one", "together", "ratio", "same tokens"], cells)


def _lookup_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"{row['name']}, {row['text']}, {row['how']}",
            spread(row["off"], 1),
            spread(row["on"], 1),
            spread(row["ratio"], 2),
            f"{row['accepted']:.0f} of {row['drafted']:.0f} drafted, {row['tokens']} tokens",
            "yes" if row["same"] else "no",
        ]
        for row in rows
    ]
    return table(["", "off", "on", "ratio", "accepted", "same tokens"], cells)
