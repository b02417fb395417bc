"""What `benchmarks/peers.py` makes of its figures: medians, ratios, leads, tables."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peer_own
from peer_own import render_own
from peer_page import insert
from peer_report import build_report, common_prefix, ratios, summarize
from peer_rounds import Metric, run_rounds
from peer_tables import render
from worker_quality import measure

from support.peers import METRICS, FakeWorker, about, quiet, result


def test_summary():
    assert summarize([3.0, 9.0, 1.0]) == {"median": 3.0, "min": 1.0, "max": 9.0}
    assert summarize([1.0, 2.0])["median"] == 1.5


def test_ratios_pair_the_rounds():
    # the machine was busy in round 2: the ratio of medians would be 15 / 10
    assert ratios([20, 10, 15], [10, 5, 30]) == [2.0, 2.0, 0.5]
    assert ratios([1, 2, 3], [1]) == [1.0]


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([1, 2, 3], [1, 2, 3], 3), ([1, 2], [1, 3], 1), ([1], [2], 0), ([], [1], 0), ([1, 2], [1], 1)],
)
def test_common_prefix(a, b, length):
    assert common_prefix(a, b) == length


def test_report_and_table():
    ours = result("pippin", False, [20.0, 10.0, 15.0], [[1, 2, 3], [1, 2, 4]], 2**20)
    same = result("twin", True, [10.0, 5.0, 30.0], [[1, 2, 3], [1, 2, 3]], 2**21)
    other = result("other", True, [40.0, 40.0, 40.0], [[9], [9]], 2**22, model="n")
    report = build_report(about(), METRICS, [ours, same, other], {"lost": "no wheel"})
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    first, second = report["ratios"]
    assert first["speed"] == {"prefill 4": {"median": 2.0, "min": 0.5, "max": 2.0}}
    assert first["peak_rss"] == 0.5
    assert second["speed"]["prefill 4"]["median"] == 0.375
    twin, foreign = report["agreement"]
    assert twin["same_files"]
    assert twin["tokens"] == {"decode 2": {"same": 2, "of": 3}}, "the worst round counts"
    assert not foreign["same_files"]
    text = render(report)
    assert "- lost: no wheel" in text
    assert "| 15.0 [10.0–20.0] |" in text
    assert "| pippin / twin \\*  | 2.00 [0.50–2.00] |" in text
    assert "2 of 3" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
        assert len({len(line) for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "A machine. What else ran meanwhile is unknown."),
        (0.01, "A machine. Other programs took 1% of the CPU time."),
        (
            0.4,
            "A machine. Other programs took 40% of the CPU time: run it again on a quiet machine.",
        ),
    ],
)
def test_a_busy_machine_is_told(share, text):
    report = build_report(about() | {"others_cpu_share": share}, METRICS, [], {})
    assert text in render(report)


def test_quality_is_that_of_the_logits(tmp_path):
    rng = np.random.default_rng(0)
    logits, tokens = rng.normal(size=(5, 7)), [1, 2, 3, 4, 5]
    np.save(tmp_path / "exact.npy", logits)
    asked = []

    def answer(part):
        asked.append(list(part))
        return (
            logits[sum(map(len, asked[:-1])) :][: len(part)] + 3
        )  # a shift changes no probability

    scores = measure(answer, tokens, str(tmp_path / "exact.npy"), 2)
    assert asked == [[1, 2], [3, 4], [5]]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.prod([probabilities[i, tokens[i + 1]] for i in range(4)]) ** (-1 / 4)
    assert scores["perplexity"] == pytest.approx(expected)
    assert scores["kl"] == pytest.approx(0, abs=1e-12)
    assert scores["top1"] == 1.0
    worse = measure(lambda part: np.zeros((len(part), 7)), tokens, str(tmp_path / "exact.npy"), 5)
    entropy = -(probabilities * np.log(probabilities)).sum(-1).mean()
    assert worse["kl"] == pytest.approx(np.log(7) - entropy)
    assert worse["perplexity"] == pytest.approx(7)


def test_a_lead_needs_equal_quality():
    def lead(ours, theirs):
        first = result("pippin", False, [20.0], [[1]], 1, perplexity=ours)
        second = result("peer", True, [10.0], [[1]], 1, perplexity=theirs)
        worse = result("worse", True, [40.0], [[1]], 1, perplexity=2 * ours)
        report = build_report(about(), METRICS, [first, second, worse], {})
        text = render(report)
        [row] = report["leads"]
        assert row["best"]["peer"] == "worse"
        return row["best_rival"], "2.00 [2.00–2.00] \\*" in text

    rival, marked = lead(ours=10.04, theirs=10.0)
    assert (rival["peer"], rival["ratio"]["median"], rival["equal"]) == ("peer", 2.0, True)
    assert not marked
    rival, marked = lead(ours=10.06, theirs=10.0)
    assert (rival["peer"], rival["equal"]) == ("peer", False)
    assert marked
    rival, _ = lead(ours=9.9, theirs=10.0)
    assert rival is None, "a peer that is worse is no rival"


def test_a_time_is_shown_as_one_and_compared_as_a_speed():
    metric = Metric("first", "first", [1], 1, "s")
    workers = [
        FakeWorker("pippin", [], seconds=0.25, peer=False),
        FakeWorker("peer", [], seconds=0.5),
    ]
    report = build_report(about(), [metric], run_rounds(workers, [metric], 1, {}, quiet), {})
    text = render(report)
    assert "first, s |" in text
    assert "0.250 [0.250–0.250]" in text
    assert report["ratios"][0]["speed"]["first"]["median"] == 2.0


def test_the_curve_is_beside_what_the_kv_bytes_explain():
    ours = result("pippin", False, [1.0], [[1]], 1)
    metrics = [
        Metric("decode after 4", "decode", [0] * 4, 2, only=["pippin"]),
        Metric("decode after 1", "decode", [0], 2, only=["pippin"]),
    ]
    ours.speeds = {"decode after 4": [100.0], "decode after 1": [125.0]}
    report = build_report(about() | {"read_bandwidth": 2.048e6}, metrics, [ours], {})
    assert report["curve"][0]["points"] == [
        {"context": 1, "ms": 8.0, "kv_ms": 1.0},
        {"context": 4, "ms": 10.0, "kv_ms": 4.0},
    ]
    assert "| 4       |      10.00 |   2.00 |        3.00 |" in render(report)


def test_a_page_keeps_its_frame(tmp_path):
    page = tmp_path / "page.md"
    insert(page, "first\n")
    assert page.read_text() == "first\n"
    page.write_text("# Ours\n\n<!-- measured: begin -->\nold\n<!-- measured: end -->\n\nbelow\n")
    for _ in range(2):
        insert(page, "new\n")
        assert page.read_text() == (
            "# Ours\n\n<!-- measured: begin -->\n\nnew\n\n<!-- measured: end -->\n\nbelow\n"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


class OwnWorker(FakeWorker):
    """Answers what only Pippin is asked."""

    def ask(self, do, **request):
        if do == "batch":
            return {"alone": 2.0, "together": 4.0, "same": True}
        assert do == "lookup"
        if request["prompt_lookup"]:
            return {"tokens": [1, 2], "rate": 30.0, "drafted": 4, "accepted": 3}
        return {"tokens": [1, 2], "rate": 20.0, "drafted": 0, "accepted": 0}


def test_own_figures():
    worker = OwnWorker("pippin", [], peer=False)
    object.__setattr__(worker.contestant, "load", {"backend": "onnx"})
    report = peer_own.measure_own([worker], list(range(512)), 2, 16, quiet)
    [batch] = report["batch"]
    assert (batch["alone"]["median"], batch["together"]["median"]) == (8.0, 32.0)
    assert batch["ratio"]["median"] == 4.0
    for row in report["lookup"]:
        assert (row["ratio"]["median"], row["same"]) == (1.5, True)
    text = render_own(report)
    assert "3 of 4 drafted, 2 tokens" in text
    assert "4.00 [4.00–4.00]" in text
    assert report["import_seconds"]["min"] > 0
