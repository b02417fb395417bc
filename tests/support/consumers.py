"""Every program that an exported folder must run in, and how it is asked for greedy tokens.

A consumer is a program under tests/consumers/ that takes FOLDER WEIGHTS REQUEST.json, and prints
one JSON document last: `tokens`, and where it has a tokenizer of its own, `prompt_ids`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .consumer_packages import browser, c_program, node, node_modules, python_with

_TESTS = Path(__file__).parent.parent / "consumers"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
_SECONDS = 300
# transformers.js v3 has onnxruntime 1.21 in Node; in browsers it has 1.22.
_NO_8_BIT = "Only 4b quantization is supported for MatMulNBits"


class Failed(Exception):
    """What a consumer said when it ended with an error."""


@dataclass(frozen=True)
class Consumer:
    """One program. `command(site)` is what it is started with; `site` is a scratch directory."""

    name: str
    command: Callable[[Path], list[str]]
    arguments: tuple[str, ...] = ()  # after FOLDER WEIGHTS REQUEST.json
    refuses: dict[str, str] = field(default_factory=dict)  # weights -> what it says of them
    slow: bool = False

    @property
    def in_browser(self) -> bool:
        return self.command is in_browser


def run_consumer(
    consumer: Consumer, folder: Path, weights: str, asked: dict[str, Any], scratch: Path
) -> dict[str, Any]:
    """The answer to the request, and `peak_mib`. Raises Missing, or Failed with its own words."""
    request = scratch / "request.json"
    request.write_text(json.dumps(asked), encoding="utf-8")
    command = [*consumer.command(scratch), str(folder), weights, str(request), *consumer.arguments]
    return json.loads(run_program([sys.executable, str(_TESTS / "measured.py"), *command]))


def run_program(command: list[str], text: str = "") -> str:
    """Standard output of a program that is given `text`; its standard error goes to ours.

    Raises Failed when it ends with an error, or takes so long that it is ended, with what it
    started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as program:
        try:
            output, errors = program.communicate(text, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            raise Failed(f"{' '.join(command)} took more than {_SECONDS} s") from None
    sys.stderr.write(errors)
    if program.returncode != 0:
        raise Failed(errors[-4000:] or f"{command[0]} ended with {program.returncode}")
    return output


def python_program(
    name: str, requirements: Path | None = None, label: str = ""
) -> Callable[[Path], list[str]]:
    """A consumer in Python; with requirements, in an environment of its own under a label."""

    def command(site: Path) -> list[str]:
        program = str(_TESTS / name / "run.py")
        if requirements is None:
            return [sys.executable, program]
        return [python_with(f"{name}-{label}" if label else name, requirements), program]

    return command


def node_program(name: str, package: Path) -> Callable[[Path], list[str]]:
    """A consumer in Node, which finds packages beside a program only: both are laid together."""

    def command(site: Path) -> list[str]:
        shutil.copy(_TESTS / "greedy.mjs", site)
        staged = stage(site / name, [_TESTS / name / "run.mjs"], package, _label(package))
        return [node(), str(staged / "run.mjs")]

    return command


def stage(site: Path, files: list[Path], package: Path, label: str) -> Path:
    """A directory with copies of `files` and the packages of a package.json."""
    site.mkdir()
    for file in files:
        shutil.copy(file, site)
    (site / "node_modules").symlink_to(node_modules(label, package))
    return site


def in_browser(site: Path) -> list[str]:
    """The driver, on the example's pages and ours; it takes the rest of its arguments."""
    chromium = browser()
    driver = [_TESTS / "browser" / "drive.mjs"]
    staged = stage(site / "driver", driver, _TESTS / "browser" / "package.json", "browser-driver")
    example = EXAMPLES / "browser"
    pages = [*example.glob("*.html"), *example.glob("*.mjs")]
    pages += [_TESTS / "browser" / "page.html", _TESTS / "greedy.mjs"]
    stage(site / "pages", pages, example / "package.json", "browser-pages")
    return [node(), str(staged / "drive.mjs"), chromium, str(site / "pages")]


def c_with_shared_buffers(site: Path) -> list[str]:
    """The C example, and a program between that speaks its protocol."""
    return [sys.executable, str(_TESTS / "c_api" / "run.py"), c_program(EXAMPLES / "c" / "chat.c")]


def _label(package: Path) -> str:
    parts = package.relative_to(package.parents[2]).parent.parts
    return "-".join(parts)


def _consumers() -> list[Consumer]:
    v3, v4 = (_TESTS / "transformers_js" / v / "package.json" for v in ("v3", "v4"))
    genai, optimum = (
        _TESTS / name / "requirements.txt" for name in ("onnxruntime_genai", "optimum_onnx")
    )
    web = node_program("onnxruntime_web", _TESTS / "onnxruntime_web" / "package.json")
    return [
        Consumer("onnxruntime (Python)", python_program("onnxruntime_python")),
        Consumer("onnxruntime-genai", python_program("onnxruntime_genai", genai)),
        Consumer("optimum-onnx", python_program("optimum_onnx", optimum), slow=True),
        Consumer(
            "transformers.js v3, Node",
            node_program("transformers_js", v3),
            refuses={"q4": _NO_8_BIT, "int8": _NO_8_BIT},
        ),
        Consumer("transformers.js v4, Node", node_program("transformers_js", v4)),
        Consumer(
            "onnxruntime-node", node_program("onnxruntime_node", EXAMPLES / "node/package.json")
        ),
        Consumer("onnxruntime-web, Node, 1 thread", web, ("1",), slow=True),
        Consumer("onnxruntime-web, Node, 2 threads", web, ("2",), slow=True),
        Consumer(
            "onnxruntime-web, Chromium, 1 thread", in_browser, ("greedy", "wasm", "1"), slow=True
        ),
        Consumer(
            "onnxruntime-web, Chromium, 2 threads", in_browser, ("greedy", "wasm", "2"), slow=True
        ),
        Consumer("C API, shared buffers", c_with_shared_buffers),
    ]


CONSUMERS = _consumers()
WEBGPU = Consumer("onnxruntime-web, WebGPU", in_browser, ("greedy", "webgpu", "1"))
