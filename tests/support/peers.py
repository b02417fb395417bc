"""What the tests of `benchmarks/peers.py` share: a worker that answers at once, and results."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from peer_rounds import Metric, Result
from peer_worker import Contestant, WorkerError

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
    def keep(self, length):
        self.tokens = self.tokens[:length]
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


def quiet(_):
    """Takes notes and drops them."""


def about():
    """What a report says of the run."""
    settings = {"threads": 2, "rounds": 3, "prefill": 4, "context": 8, "decode": 2}
    machine = {"machine": "A machine", "others_cpu_share": 0.01}
    return {"model": "m.gguf", "settings": settings} | machine


def result(name, peer, prefill, replies, peak_rss, model="m", perplexity=None):
    """What came of one contestant: speeds of prefill, replies of decode."""
    return Result(
        Contestant(name, "python", "worker.py", {"model": model}, peer),
        ABOUT,
        {"prefill 4": prefill},
        {"decode 2": replies},
        peak_rss,
        quality={"perplexity": perplexity, "kl": 0.1, "top1": 0.9} if perplexity else {},
    )
