"""The logic of `benchmarks/peers.py`: order, processes, what is asked. Nothing is timed."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import machine
import peer_env
import peers
from peer_contestants import OURS, THEIRS, choose, option_names
from peer_report import build_report
from peer_rounds import Metric, make_metrics, measure_quality, order_of_round, run_rounds
from peer_tables import render
from peer_worker import Contestant, Worker, WorkerError
from worker_loop import Steps

from pippin.runtime.errors import PippinError
from support.peers import ABOUT, FAKE_WORKER, METRICS, FakeWorker, about, quiet


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
    assert [do for do, _ in measured[::3]] == ["prefill"] * 2 + ["decode"] * 2
    assert [name for _, name in measured[::3]] == ["A", "B"] * 2


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
    assert [len(values) for values in results[0].speeds.values()] == [2]
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


def test_what_two_prompts_share_is_not_computed_again():
    class Recorder:
        def __init__(self):
            self.held, self.given = [], []

        def load(self, **_):
            return {}

        def open(self):
            self.held = []

        def keep(self, length):
            self.held = self.held[:length]

        def prefill(self, tokens):
            self.given.append(list(tokens))
            self.held += tokens

        def next(self):
            self.held.append(0)
            return 0

    recorder = Recorder()
    steps = Steps(recorder)
    steps.load()
    for tokens, given in (
        ([7, 8, 9], [7, 8, 9]),
        ([7, 8, 9], [9]),  # its logits are wanted again
        ([7, 8, 6, 5], [6, 5]),
        ([7, 8], [8]),
        ([1], [1]),
    ):
        answer = steps.decode(tokens, 2)
        assert recorder.given[-1] == given
        assert recorder.held == [*tokens, *answer["tokens"]]
        recorder.held.pop()  # the last token chosen is never run
    steps.prefill([1] * 16)
    assert recorder.given[-2:] == [[1] * 2, [1] * 16], "a timed prompt is computed whole"


def test_quality_is_not_there_without_logits(start):
    answer = start().ask("quality", tokens=[1, 2], reference="nowhere", piece=1)
    assert answer["perplexity"] is None


def test_quality_that_fails_leaves_the_speeds():
    bad, good = FakeWorker("bad", [], fails_at=2), FakeWorker("good", [])
    results = run_rounds([bad, good], METRICS[:1], 0, {}, quiet)
    measure_quality([bad, good], results, [1, 2], "file", quiet)
    assert (results[0].failure, results[0].quality) == ("", {})
    assert results[1].quality["peak_rss"] == ABOUT["peak_rss"]


def test_metrics():
    sizes = {"prefill": [4, 8], "context": [8, 16], "decode": 8}
    metrics = make_metrics(list(range(100)), sizes, [12, 16], ["A"])
    assert [metric.name for metric in metrics] == [
        "first token after 50",
        "prefill 4",
        "prefill 8",
        "decode after 16",
        "decode after 12",
        "decode after 8",
    ]
    assert [metric.only for metric in metrics] == [None, None, None, None, ["A"], None]
    assert metrics[2].request() == {"do": "prefill", "tokens": list(range(8))}
    assert metrics[3].request() == {"do": "decode", "tokens": list(range(16)), "count": 8}
    [long] = make_metrics([0] * 5000, sizes | {"prefill": [], "context": [5000]}, (), ())[1:]
    assert long.count == 2, "fewer tokens where each takes long"


def test_a_metric_is_asked_of_those_it_is_for():
    asked = []
    workers = [FakeWorker(name, asked) for name in "ABC"]
    only = Metric("decode 3", "decode", [1], 3, only=["A", "C"])
    run_rounds(workers, [only], 2, {}, quiet)
    assert asked[3:] == [("decode", "A"), ("decode", "C"), ("decode", "C"), ("decode", "A")]


def test_names_and_their_beginnings():
    names = option_names(THEIRS)
    assert len(set(names)) == len(names)
    for name in names:
        assert name in option_names(choose("peer", name, THEIRS))
    assert [entry.name for entry in choose("peer", "llama.cpp-q4_1-kv8", THEIRS)] == [
        "llama.cpp q4_1 kv8"
    ]
    assert {entry.peer for entry in choose("peer", "genai,openvino", THEIRS)} == {
        "onnxruntime-genai",
        "openvino-genai",
    }
    assert [entry.name for entry in choose("backend", "mlx", OURS)] == ["pippin mlx"]
    assert {entry.peer for entry in THEIRS} == set(peer_env.known_peers())
