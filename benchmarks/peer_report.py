"""What the rounds come to: medians with their spread, and ratios; as JSON or Markdown."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from peer_rounds import Metric, Result

_MIB = 2**20


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of at least one value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours by theirs for each round that both have: above 1, Pippin is faster."""
    return [a / b for a, b in zip(ours, theirs, strict=False)]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens agree from the start."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def build_report(
    about: dict[str, Any],
    metrics: Sequence[Metric],
    results: Sequence[Result],
    absent: dict[str, str],
) -> dict[str, Any]:
    """Everything measured, as one JSON document; `absent` has the reason by peer name."""
    failed = {r.contestant.name: r.failure for r in results if r.failure}
    measured = [result for result in results if result.speeds]
    return about | {
        "metrics": [metric.name for metric in metrics],
        "contestants": [_contestant(result) for result in measured],
        "ratios": list(_ratio_rows(measured)),
        "agreement": list(_agreement_rows(measured)),
        "missing": absent | failed,
    }


def _contestant(result: Result) -> dict[str, Any]:
    return {
        "name": result.contestant.name,
        "version": result.about["version"],
        "kv_bytes_per_token": result.about["kv_bytes_per_token"],
        "load_seconds": result.about["seconds"],
        "peak_rss_bytes": result.peak_rss,
        "tokens_per_second": {
            name: summarize(values) | {"rounds": values} for name, values in result.speeds.items()
        },
    }


def _ratio_rows(results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    for ours, theirs in _pairs(results):
        by_metric = {
            name: summarize(ratios(ours.speeds[name], theirs.speeds[name]))
            for name in ours.speeds
            if name in theirs.speeds
        }
        rss = ours.peak_rss / theirs.peak_rss
        yield {
            "pippin": ours.contestant.name,
            "peer": theirs.contestant.name,
            "speed": by_metric,
            "peak_rss": rss,
        }


def _agreement_rows(results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    """The shortest common prefix of two contestants' greedy replies, over all rounds."""
    for ours, theirs in _pairs(results):
        tokens = {}
        for name in ours.replies.keys() & theirs.replies.keys():
            pairs = list(zip(ours.replies[name], theirs.replies[name], strict=False))
            same = min(common_prefix(a, b) for a, b in pairs)
            tokens[name] = {"same": same, "of": len(pairs[0][0])}
        yield {
            "pippin": ours.contestant.name,
            "peer": theirs.contestant.name,
            "same_files": ours.contestant.load["model"] == theirs.contestant.load["model"],
            "tokens": dict(sorted(tokens.items())),
        }


def _pairs(results: Sequence[Result]) -> Iterable[tuple[Result, Result]]:
    peers = [result for result in results if result.contestant.peer]
    return ((r, peer) for r in results if not r.contestant.peer for peer in peers)


def render(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    settings = report["settings"]
    parts = [
        f"{report['model']}, {settings['threads']} threads, {settings['rounds']} interleaved "
        f"rounds, greedy. {report['machine']}. {_quiet(report['others_cpu_share'])}",
        "Tokens per second, median [min–max]:",
        _speed_table(report),
    ]
    if report["ratios"]:
        parts += [
            "Pippin's speed divided by the peer's, round by round (above 1: Pippin is faster; "
            "memory below 1: Pippin takes less):",
            _ratio_table(report),
            "Greedy tokens that agree from the start:",
            _agreement_table(report),
        ]
    if report["missing"]:
        lines = [f"- {name}: {reason}" for name, reason in report["missing"].items()]
        parts += ["Not measured, or not to the end:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _quiet(share: float | None) -> str:
    """How far the numbers can be trusted."""
    if share is None:
        return "What else ran meanwhile is unknown."
    again = "" if share < 0.05 else ": run it again on a quiet machine"
    return f"Other programs took {share:.0%} of the CPU time{again}."


def _speed_table(report: dict[str, Any]) -> str:
    head = ["", *report["metrics"], "peak RSS MiB", "load s", "KV KiB/token", "version"]
    rows = [
        [
            row["name"],
            *(_spread(row["tokens_per_second"].get(name), 1) for name in report["metrics"]),
            f"{row['peak_rss_bytes'] / _MIB:.0f}",
            f"{row['load_seconds']:.2f}",
            f"{row['kv_bytes_per_token'] / 1024:.1f}",
            row["version"],
        ]
        for row in report["contestants"]
    ]
    return _table(head, rows)


def _ratio_table(report: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['pippin']} / {row['peer']}",
            *(_spread(row["speed"].get(name), 2) for name in report["metrics"]),
            f"{row['peak_rss']:.2f}",
        ]
        for row in report["ratios"]
    ]
    return _table(["", *report["metrics"], "peak RSS"], rows)


def _agreement_table(report: dict[str, Any]) -> str:
    names = sorted({name for row in report["agreement"] for name in row["tokens"]})
    rows = [
        [
            f"{row['pippin']} and {row['peer']}",
            "yes" if row["same_files"] else "no",
            *(_agreed(row["tokens"].get(name)) for name in names),
        ]
        for row in report["agreement"]
    ]
    return _table(["", "same files", *names], rows)


def _agreed(tokens: dict[str, int] | None) -> str:
    return f"{tokens['same']} of {tokens['of']}" if tokens else "–"


def _spread(summary: dict[str, float] | None, digits: int) -> str:
    if summary is None:
        return "–"
    median, low, high = (f"{summary[key]:.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} [{low}–{high}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns as wide as their widest cell; all but the first right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(3, *(len(cell) for cell in column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), f"| {' | '.join(rule)} |", *map(line, rows)])
