"""What the rounds come to: medians with their spread, ratios, quality; as one JSON document."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from peer_rounds import Metric, Result
from worker_loop import common_prefix

EQUAL = 1.005  # a perplexity up to this many times a peer's is as good


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of at least one value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours by theirs for each round that both have: above 1, Pippin is faster."""
    return [a / b for a, b in zip(ours, theirs, strict=False)]


def build_report(
    about: dict[str, Any],
    metrics: Sequence[Metric],
    results: Sequence[Result],
    absent: dict[str, str],
) -> dict[str, Any]:
    """Everything measured, as one JSON document; `absent` has the reason by name."""
    failed = {r.contestant.name: r.failure for r in results if r.failure}
    measured = [result for result in results if result.speeds]
    shared = [metric for metric in metrics if metric.only is None]
    return about | {
        "metrics": [{"name": metric.name, "unit": metric.unit} for metric in shared],
        "contestants": [_contestant(result) for result in measured],
        "ratios": list(_ratio_rows(measured)),
        "leads": list(_leads(shared, measured)),
        "curve": list(_curve(metrics, measured, about.get("read_bandwidth"))),
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
        "quality": result.quality,
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
        yield {
            "pippin": ours.contestant.name,
            "peer": theirs.contestant.name,
            "speed": by_metric,
            "peak_rss": ours.peak_rss / theirs.peak_rss,
            "perplexity": _perplexity_ratio(ours, theirs),
        }


def _leads(metrics: Sequence[Metric], results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    """For each metric, each of ours beside the fastest peer, and the fastest of equal quality.

    A peer that is worse than ours by more than `EQUAL` is no rival at equal quality. One that is
    better by more than that is: but a ratio to it is no lead, as "equal" says.
    """
    peers = [result for result in results if result.contestant.peer]
    for metric in metrics:
        timed = [peer for peer in peers if metric.name in peer.speeds]
        for ours in (result for result in results if not result.contestant.peer):
            if metric.name not in ours.speeds or not timed:
                continue
            rivals = [peer for peer in timed if _rivals(_perplexity_ratio(ours, peer))]
            yield {
                "metric": metric.name,
                "unit": metric.unit,
                "pippin": ours.contestant.name,
                "speed": statistics.median(ours.speeds[metric.name]),
                "best": _against(ours, timed, metric.name),
                "best_rival": _against(ours, rivals, metric.name) if rivals else None,
            }


def _rivals(perplexity_ratio: float | None) -> bool:
    return perplexity_ratio is None or perplexity_ratio >= 1 / EQUAL


def is_equal(perplexity_ratio: float | None) -> bool:
    """Whether ours is as good, given our perplexity by the peer's; an unknown one is not."""
    return perplexity_ratio is not None and perplexity_ratio <= EQUAL


def _against(ours: Result, peers: Sequence[Result], metric: str) -> dict[str, Any]:
    best = max(peers, key=lambda peer: statistics.median(peer.speeds[metric]))
    return {
        "peer": best.contestant.name,
        "speed": statistics.median(best.speeds[metric]),
        "ratio": summarize(ratios(ours.speeds[metric], best.speeds[metric])),
        "equal": is_equal(_perplexity_ratio(ours, best)),
    }


def _perplexity_ratio(ours: Result, theirs: Result) -> float | None:
    """Our worst by their own; None where a peer's interface gives no logits."""
    values = [ours.quality.get("perplexity"), ours.quality.get("stepped")]
    known = [value for value in values if value is not None]
    peers = theirs.quality.get("perplexity")
    return max(known) / peers if known and peers is not None else None


def _curve(
    metrics: Sequence[Metric], results: Sequence[Result], bandwidth: float | None
) -> Iterable[dict[str, Any]]:
    """Milliseconds a token by context length, and those that reading the KV cache takes."""
    decodes = [metric for metric in metrics if metric.do == "decode"]
    followed = {name for metric in decodes for name in metric.only or ()}
    for result in results if bandwidth else ():
        if result.contestant.name not in followed:
            continue
        bytes_each = result.about["kv_bytes_per_token"]
        points = [
            {
                "context": len(metric.tokens),
                "ms": 1000 / statistics.median(result.speeds[metric.name]),
                "kv_ms": 1000 * bytes_each * len(metric.tokens) / bandwidth,
            }
            for metric in decodes
            if metric.name in result.speeds
        ]
        yield {
            "name": result.contestant.name,
            "points": sorted(points, key=lambda point: point["context"]),
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
