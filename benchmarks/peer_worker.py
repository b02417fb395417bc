"""A contestant's process, seen from the coordinator: asked one thing at a time, asleep else."""

import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pippin.runtime.errors import PippinError

_HERE = Path(__file__).parent
_CAN_STOP = hasattr(signal, "SIGSTOP")


@dataclass(frozen=True)
class Contestant:
    """One row of the table: what runs which files."""

    name: str
    python: str  # the interpreter that has it
    worker: str  # file name of the worker
    load: dict[str, Any] = field(default_factory=dict)  # options of its "load" request
    peer: bool = True  # False: it is Pippin's


class WorkerError(PippinError):
    """A contestant failed; the rest of the run goes on without it."""


class Worker:
    """The process of one contestant.

    Between two requests the process is stopped by a signal: thread pools that spin while they
    wait for work would take the cores from whoever is being timed.
    """

    def __init__(self, contestant: Contestant, log: Path, timeout: float = 900) -> None:
        self.contestant = contestant
        self._log, self._timeout = log, timeout  # seconds an answer may take
        with log.open("w") as errors:
            # A process group of its own: Ctrl-C reaches this program, which ends the workers.
            self._process = subprocess.Popen(
                [contestant.python, str(_HERE / contestant.worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=None if sys.platform == "win32" else 0,
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Its answer to one request. Raises WorkerError with the reason it gave, or left behind."""
        self._signal("SIGCONT")
        timer = threading.Timer(self._timeout, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"do": do} | request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise WorkerError(f"{do}: {self._last_words()}")
        self._signal("SIGSTOP")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process; may be called twice."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _signal(self, name: str) -> None:
        if _CAN_STOP:
            self._process.send_signal(getattr(signal, name))

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"the process ended with {code}: {last}"
