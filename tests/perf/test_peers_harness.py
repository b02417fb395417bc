"""The logic of `benchmarks/peers.py`: order, medians, rendering, processes. Nothing is timed."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import machine
import peer_env
import peers
from peer_report import build_report, common_prefix, ratios, render, summarize
from peer_rounds import Metric, Result, order_of_round, run_rounds
from peer_worker import Contestant, Worker, WorkerError

from pippin.runtime.errors import PippinError

METRICS = [Metric("prefill 4", "prefill", [1, 2, 3, 4], 4), Metric("decode 2", "decode", [1], 2)]
ABOUT = {"version": "one 1.0", "kv_bytes_per_token": 2048, "seconds": 0.5, "peak_rss": 2**20}

FAKE_WORKER = """
import sys
sys.path.insert(0, {benchmarks!r})
from worker_loop import serve

class Fake:
    def load(self, model, threads, capacity):
        print("a library talks on stdout")
        return {{"version": f"fake {{threads}}", "kv_bytes_per_token": capacity}}
    def open(self):
        self.tokens = []
    def prefill(self, tokens):
        if 13 in tokens:
            raise ValueError("13 is not for me")
        if 14 in tokens:
            sys.exit("gone for good")
        self.tokens += tokens
    def next(self):
        self.tokens.append(len(self.tokens))
        return self.tokens[-1]

serve(Fake())
"""


class FakeWorker:
    """Answers at once, and writes down who was asked what."""

    def __init__(self, name, asked, seconds=1.0, fails_at=None, peer=True):
        self.contestant = Contestant(name, "python", "worker.py", {"model": "m"}, peer)
        self.asked, self.seconds, self.fails_at = asked, seconds, fails_at
        self.closed = False

    def ask(self, do, **request):
        assert not self.closed
        self.asked.append((do, self.contestant.name))
        if sum(name == self.contestant.name for _, name in self.asked) == self.fails_at:
            raise WorkerError(f"{do}: out of luck")
        answer = dict(ABOUT, seconds=self.seconds)
        return answer | ({"tokens": [5, 6, 7]} if do == "decode" else {})

    def close(self):
        self.closed = True


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "fake_worker.py"
    benchmarks = Path(peers.__file__).parent
    script.write_text(FAKE_WORKER.format(benchmarks=str(benchmarks)))
    started = []

    def start():
        started.append(Worker(Contestant("fake", sys.executable, str(script)), tmp_path / "log"))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


def quiet(_):
    pass


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_contestant_goes_first_in_turn(count):
    orders = [order_of_round(count, index) for index in range(count)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert sorted(order[0] for order in orders) == list(range(count))


def test_rounds_are_interleaved():
    asked = []
    workers = [FakeWorker(name, asked) for name in "ABC"]
    run_rounds(workers, METRICS, 2, {"threads": 1, "capacity": 9}, quiet)
    assert asked[:3] == [("load", name) for name in "ABC"]
    measured = asked[3:]
    assert len(measured) == 2 * len(METRICS) * 3
    for start in range(0, len(measured), 3):
        turn = measured[start : start + 3]
        assert len({do for do, _ in turn}) == 1, "one metric at a time"
        assert {name for _, name in turn} == set("ABC"), "all before anyone again"
    assert [do for do, _ in measured[::3]] == ["prefill", "decode"] * 2


def test_speed_is_tokens_by_seconds():
    worker = FakeWorker("A", [], seconds=0.5)
    [result] = run_rounds([worker], METRICS, 3, {}, quiet)
    assert result.speeds == {"prefill 4": [8.0] * 3, "decode 2": [4.0] * 3}
    assert result.replies == {"decode 2": [[5, 6, 7]] * 3}


def test_a_failure_leaves_the_others_going():
    asked = []
    bad, good = FakeWorker("bad", asked, fails_at=4), FakeWorker("good", asked, peer=False)
    results = run_rounds([bad, good], METRICS, 3, {}, quiet)
    assert bad.closed
    assert results[0].failure == "prefill: out of luck"
    assert [len(values) for values in results[0].speeds.values()] == [1, 1]
    assert [len(values) for values in results[1].speeds.values()] == [3, 3]
    report = build_report(about(), METRICS, results, {})
    assert report["missing"] == {"bad": "prefill: out of luck"}
    assert "- bad: prefill: out of luck" in render(report)


def test_a_contestant_that_does_not_load_is_named():
    bad, good = FakeWorker("bad", [], fails_at=1), FakeWorker("good", [], peer=False)
    report = build_report(about(), METRICS, run_rounds([bad, good], METRICS, 1, {}, quiet), {})
    assert report["missing"] == {"bad": "load: out of luck"}
    assert [row["name"] for row in report["contestants"]] == ["good"]
    assert report["ratios"] == []


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


def about():
    settings = {"threads": 2, "rounds": 3, "prefill": 4, "context": 8, "decode": 2}
    machine = {"machine": "A machine", "others_cpu_share": 0.01}
    return {"model": "m.gguf", "settings": settings} | machine


def result(name, peer, prefill, replies, peak_rss, model="m"):
    return Result(
        Contestant(name, "python", "worker.py", {"model": model}, peer),
        ABOUT,
        {"prefill 4": prefill},
        {"decode 2": replies},
        peak_rss,
    )


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
    assert "| pippin / twin  | 2.00 [0.50–2.00] |" in text
    assert "2 of 3" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
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


def test_others_share_is_what_neither_we_nor_our_children_took(monkeypatch):
    clock, busy, own = iter([100.0, 110.0]), iter([50.0, 59.0]), iter([1.0, 7.0])
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert machine.Watch().others() == pytest.approx((9 - 6) / (10 * 2))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads /proc/stat")
def test_busy_seconds_grow_with_our_own():
    before = machine._busy_seconds(), machine._own_seconds()
    while machine._own_seconds() < before[1] + 0.2:
        sum(range(10_000))
    assert machine._busy_seconds() >= before[0] + 0.1


def test_a_worker_answers(start):
    worker = start()
    answer = worker.ask("load", model="m", threads=2, capacity=100)
    assert (answer["version"], answer["kv_bytes_per_token"]) == ("fake 2", 100)
    assert answer["seconds"] >= 0
    assert 2**20 < answer["peak_rss"] < 2**30
    answer = worker.ask("decode", tokens=[7, 7], count=3)
    assert answer["tokens"] == [2, 3, 4, 5], "the token before the clock, then three steps"
    assert worker.ask("prefill", tokens=[1] * 16)["seconds"] >= 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_worker_sleeps_between_requests(start):
    worker = start()
    worker.ask("prefill", tokens=[1])
    pid = worker._process.pid
    for _ in range(1000):  # the signal needs a moment to arrive
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            break
    assert state == "T"
    worker.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_worker_says_what_went_wrong(start):
    worker = start()
    with pytest.raises(WorkerError, match="prefill: ValueError: 13 is not for me"):
        worker.ask("prefill", tokens=[13])
    assert worker.ask("prefill", tokens=[1])["seconds"] >= 0, "it goes on after an error"
    with pytest.raises(WorkerError, match="prefill: the process ended with 1: gone for good"):
        worker.ask("prefill", tokens=[14])


def test_a_worker_that_never_started(tmp_path):
    worker = Worker(Contestant("none", sys.executable, "no_such_worker.py"), tmp_path / "log")
    with pytest.raises(WorkerError, match=r"load: the process ended with 2: .*no_such_worker"):
        worker.ask("load")
    worker.close()


def test_a_peer_that_cannot_be_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    peer = peer_env.Peer("ghost", (str(tmp_path / "ghost-1.0-py3-none-any.whl"),), "worker.py")
    with pytest.raises(PippinError, match=r"pip failed: ERROR: .*ghost-1.0-py3-none-any.whl"):
        peer_env.ensure_installed(peer, quiet)
    assert not (tmp_path / "peers" / "ghost" / "installed.txt").exists(), "tried anew next time"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peers", "llama.cpp,nobody"], "no peer is called 'nobody'"),
        (["--pippin", "onnx-q3"], "no backend is called 'onnx-q3'"),
    ],
)
def test_unknown_names(options, message):
    outcome = CliRunner().invoke(peers.main, options)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
