"""A report of `peer_report`, and of `peer_own`, as Markdown."""

from collections.abc import Sequence
from typing import Any

from peer_report import EQUAL, is_equal

_MIB = 2**20


def render(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    settings = report["settings"]
    parts = [
        f"{report['model']}, {settings['threads']} threads, {settings['rounds']} interleaved "
        f"rounds, greedy. {report['machine']}. {_quiet(report['others_cpu_share'])}",
        *([f"`pippin bench machine`: {report['rates']}."] if "rates" in report else []),
        "Tokens per second (a time where it says s), median [min–max]:",
        _speed_table(report),
    ]
    if any(row["quality"] for row in report["contestants"]):
        parts += [_QUALITY, _quality_table(report)]
    if report["leads"]:
        parts += [_LEADS, _lead_table(report)]
    if report["curve"]:
        gigabytes = report["read_bandwidth"] / 1e9
        parts += [_CURVE.format(gigabytes=gigabytes), _curve_table(report)]
    if report["ratios"]:
        parts += [_RATIOS, _ratio_table(report)]
        parts += ["Greedy tokens that agree from the start:", _agreement_table(report)]
    if report["missing"]:
        lines = [f"- {name}: {reason}" for name, reason in report["missing"].items()]
        parts += ["Not measured, or not to the end:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


_QUALITY = (
    "Quality, on the same tokens: perplexity when the text is read in pieces, and token by token; "
    "what it is to that of the same weights in float32, and the distance from their logits:"
)
_LEADS = (
    "Pippin beside the fastest peer of each column, and beside the fastest of those whose "
    f"perplexity is not above Pippin's by more than {EQUAL - 1:.1%}: its rival. Ratios are those "
    "of the rounds (above 1: Pippin is faster). \\* marks a peer that is better than Pippin by "
    "more than that, or unknown: beside it no ratio is a lead."
)
_CURVE = (
    "Decoding by context, milliseconds a token: measured, its growth since the shortest, and what "
    "reading the bytes of the KV cache explains of that growth at the {gigabytes:.1f} GB/s that "
    "this machine reads:"
)
_RATIOS = (
    "Pippin's speed divided by the peer's, round by round, and its memory and perplexity (for "
    "these two, below 1 is better):"
)


def _quiet(share: float | None) -> str:
    """How far the numbers can be trusted."""
    if share is None:
        return "What else ran meanwhile is unknown."
    again = "" if share < 0.05 else ": run it again on a quiet machine"
    return f"Other programs took {share:.0%} of the CPU time{again}."


def _speed_table(report: dict[str, Any]) -> str:
    metrics = report["metrics"]
    names = [m["name"] + (", s" if m["unit"] == "s" else "") for m in metrics]
    head = ["", *names, "peak RSS MiB", "load s", "KV KiB/token", "version"]
    rows = [
        [
            row["name"],
            *(_measured(row["tokens_per_second"].get(m["name"]), m["unit"]) for m in metrics),
            f"{row['peak_rss_bytes'] / _MIB:.0f}",
            f"{row['load_seconds']:.2f}",
            f"{row['kv_bytes_per_token'] / 1024:.1f}",
            row["version"],
        ]
        for row in report["contestants"]
    ]
    return table(head, rows)


def _measured(summary: dict[str, float] | None, unit: str) -> str:
    if summary is None or unit != "s":
        return spread(summary, 1)
    seconds = {"median": "median", "min": "max", "max": "min"}
    return spread({key: 1 / summary[other] for key, other in seconds.items()}, 3)


def _quality_table(report: dict[str, Any]) -> str:
    exact = report.get("float32_perplexity")
    rows = []
    for row in report["contestants"]:
        quality = row["quality"]
        perplexity = quality.get("perplexity")
        if perplexity is None:
            rows.append([row["name"], *["n/a"] * 5])
            continue
        rows.append(
            [
                row["name"],
                f"{perplexity:.3f}",
                f"{quality['stepped']:.3f}" if "stepped" in quality else "–",
                f"{perplexity / exact:.4f}" if exact else "–",
                f"{quality['kl']:.5f}",
                f"{quality['top1']:.1%}",
            ]
        )
    head = ["", "perplexity", "token by token", "to float32", "mean KL, nats", "same top-1"]
    return table(head, rows)


def _lead_table(report: dict[str, Any]) -> str:
    rows = [
        [
            row["metric"],
            row["pippin"],
            _value(row["speed"], row["unit"]),
            *_beside(row["best"], row["unit"]),
            *_beside(row["best_rival"], row["unit"]),
        ]
        for row in report["leads"]
    ]
    head = ["", "Pippin", "its", "fastest peer", "its", "ratio"]
    return table([*head, "its rival", "its", "ratio"], rows)


def _beside(against: dict[str, Any] | None, unit: str) -> list[str]:
    if against is None:
        return ["–"] * 3
    mark = "" if against["equal"] else " \\*"
    return [against["peer"], _value(against["speed"], unit), spread(against["ratio"], 2) + mark]


def _value(speed: float, unit: str) -> str:
    return f"{1 / speed:.3f} s" if unit == "s" else f"{speed:.1f}"


def _curve_table(report: dict[str, Any]) -> str:
    lengths = sorted({p["context"] for row in report["curve"] for p in row["points"]})
    head, columns = ["context"], [[f"{length:,}" for length in lengths]]
    for row in report["curve"]:
        points = {point["context"]: point for point in row["points"]}
        first = row["points"][0]
        head += [f"{row['name']}, ms", "growth", "of KV bytes"]
        columns += [
            [f"{points[n][key] - less:.2f}" if n in points else "–" for n in lengths]
            for key, less in (("ms", 0.0), ("ms", first["ms"]), ("kv_ms", first["kv_ms"]))
        ]
    return table(head, list(zip(*columns, strict=True)))


def _ratio_table(report: dict[str, Any]) -> str:
    names = [metric["name"] for metric in report["metrics"]]
    rows = [
        [
            f"{row['pippin']} / {row['peer']}" + ("" if is_equal(row["perplexity"]) else " \\*"),
            *(spread(row["speed"].get(name), 2) for name in names),
            f"{row['peak_rss']:.2f}",
            f"{row['perplexity']:.4f}" if row["perplexity"] else "n/a",
        ]
        for row in report["ratios"]
    ]
    return table(["", *names, "peak RSS", "perplexity"], rows)


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
    return table(["", "same files", *names], rows)


def _agreed(tokens: dict[str, int] | None) -> str:
    return f"{tokens['same']} of {tokens['of']}" if tokens else "–"


def spread(summary: dict[str, float] | None, digits: int) -> str:
    """A summary as "median [min–max]"; a dash for None."""
    if summary is None:
        return "–"
    median, low, high = (f"{summary[key]:.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} [{low}–{high}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns as wide as their widest cell; all but the first right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(3, *(len(cell) for cell in column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), f"| {' | '.join(rule)} |", *map(line, rows)])
