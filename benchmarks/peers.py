"""Pippin beside llama.cpp, onnxruntime-genai and OpenVINO GenAI, interleaved in one run.

    python benchmarks/peers.py [--rounds 5] [--peers llama.cpp,openvino-q8_0] [--json]

Each contestant is one process that loads the same weights once. Metric by metric, each round
measures each of them in turn, with the same token ids and threads. Peers are installed into
environments of their own the first time (llama.cpp is compiled). What cannot be installed, made
or run is named with its reason.
"""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from machine import Watch, describe
from peer_contestants import OURS, THEIRS, Entry, choose, option_names
from peer_env import ensure_installed, known_peers
from peer_files import Files
from peer_inputs import quality_text, running_text
from peer_own import measure_own
from peer_page import compose, insert
from peer_report import build_report
from peer_rounds import Result, make_metrics, measure_quality, run_rounds
from peer_worker import Contestant, Worker

from pippin.apps.bench_machine import READ, measure_machine
from pippin.commands.console import print_json
from pippin.mlx_model.checkpoints import store
from pippin.runtime.cores import physical_cores
from pippin.runtime.errors import InputError, PippinError

_MODEL = "smollm2"
_CURVE = (64, 512, 1024, 2048, 4096, 7000)  # tokens of context
_PARTS = ("speed", "quality", "own")
_SPARE = 64  # tokens of room beside the longest text


def _lengths(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Comma-separated numbers of tokens, none below 8."""
    parts = value.split(",")
    if not all(part.strip().isdigit() and int(part) >= 8 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of numbers from 8 on", context, option)
    return sorted({int(part) for part in parts})


@click.command(help=__doc__.split("\n")[0])
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--peers",
    default="llama.cpp,genai,openvino",
    show_default=True,
    help=f"Names or their beginnings: {', '.join(option_names(THEIRS))}.",
)
@click.option("--pippin", default="onnx-q4,onnx-int8", show_default=True, help="Also: mlx.")
@click.option(
    "--curve",
    default="onnx-q4,llama.cpp-q4_1,openvino-q8_0",
    show_default=True,
    help="Whose decoding is followed over more lengths of context.",
)
@click.option("--parts", default=",".join(_PARTS), show_default=True, help="What to measure.")
@click.option("--prefill", default="512,2048", show_default=True, callback=_lengths)
@click.option("--context", default="8,2048,7000", show_default=True, callback=_lengths)
@click.option("--decode", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="[default: one a physical core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Markdown file: written, or its measured part replaced.",
)
def main(
    peers: str,
    pippin: str,
    curve: str,
    parts: str,
    as_json: bool,
    write: Path | None,
    threads: int | None,
    **sizes: Any,
) -> None:
    try:
        entries = choose("backend", pippin, OURS) + choose("peer", peers, THEIRS)
        followed = [entry.name for entry in choose("contestant", curve, OURS + THEIRS)]
        settings = {"threads": threads or physical_cores(), "curve": followed} | sizes
        report = compare(entries, _parts(parts), settings)
    except PippinError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    text = compose(report, [] if as_json else sys.argv[1:])
    if write:
        insert(write, text)
    if as_json:
        print_json(report)
    else:
        click.echo(text, nl=False)
    sys.exit(1 if report["missing"] else 0)


def compare(
    entries: Sequence[Entry], parts: Sequence[str], settings: dict[str, Any]
) -> dict[str, Any]:
    """Install, make files, measure; returns the report as one JSON document.

    `settings`: threads, rounds, prefill, context, decode, curve. Raises PippinError where Pippin
    itself cannot run; a peer that cannot is listed under "missing".
    """
    pythons, absent = _install({entry.peer for entry in entries} - {""})
    gguf = store.resolve(_MODEL, fetch=True)
    curve = [n for n in _CURVE if n <= max(settings["context"])]
    longest = max(settings["prefill"] + settings["context"])
    text = running_text(gguf, max(longest, 512))  # the batch takes 512
    metrics = make_metrics(text[:longest], settings, curve, settings["curve"])
    room = max(longest + settings["decode"], len(quality_text(gguf))) + _SPARE
    load = {"threads": settings["threads"], "capacity": room}
    about: dict[str, Any] = {"model": gguf.name, "machine": describe(), "settings": settings}
    with tempfile.TemporaryDirectory(prefix="pippin-peers-") as name:
        files = Files(gguf, Path(name), pythons, _note)
        contestants = _contestants(entries, files, pythons, absent)
        exact = _write_reference(files, gguf, Path(name), load) if "quality" in parts else None
        about |= _rates(settings["threads"])
        watch = Watch()
        with worker_processes(contestants, Path(name)) as workers:
            asked = metrics if "speed" in parts else []
            results = run_rounds(workers, asked, settings["rounds"], load, _note)
            if "own" in parts:
                about["own"] = measure_own(
                    _alive(workers, results), text, settings["rounds"], settings["decode"], _note
                )
            if exact:
                about["float32_perplexity"] = exact["perplexity"]
                measure_quality(workers, results, quality_text(gguf), exact["path"], _note)
    about["others_cpu_share"] = watch.others()
    return build_report(about, metrics, results, absent)


def _parts(text: str) -> list[str]:
    """Raises InputError for what is no part."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if part not in _PARTS:
            raise InputError(f"no part is called {part!r}; there are {', '.join(_PARTS)}")
    return parts


def _install(names: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The Python of each peer that is there, and the reason by name for each that is not."""
    pythons, absent = {}, {}
    for name, peer in known_peers().items():
        if name in names or (name == "llama.cpp" and "openvino-genai" in names):
            try:
                pythons[name] = ensure_installed(peer, _note)
            except PippinError as error:
                absent[name] = str(error)
    return pythons, absent


def _contestants(
    entries: Sequence[Entry], files: Files, pythons: dict[str, str], absent: dict[str, str]
) -> list[Contestant]:
    """Those whose program and files are there; the others' reasons go to `absent`."""
    contestants = []
    for entry in entries:
        if entry.peer and entry.peer not in pythons:
            continue  # its reason is known
        try:
            model = files.get(entry.files)
        except PippinError as error:
            if not entry.peer:
                raise
            absent[entry.name] = str(error)
            continue
        worker = known_peers()[entry.peer].worker if entry.peer else "worker_pippin.py"
        python = pythons[entry.peer] if entry.peer else sys.executable
        load = {"model": str(model)} | entry.options
        contestants.append(Contestant(entry.name, python, worker, load, peer=bool(entry.peer)))
    return contestants


def _write_reference(files: Files, gguf: Path, folder: Path, load: dict[str, Any]) -> dict:
    """The float32 export's perplexity, and the file with its logits."""
    options = {"model": str(files.get("onnx-fp32")), "backend": "onnx"}
    contestant = Contestant("float32", sys.executable, "worker_pippin.py", options, peer=False)
    tokens, path = quality_text(gguf), str(folder / "float32.npy")
    with worker_processes([contestant], folder) as [worker]:
        worker.ask("load", **options, threads=load["threads"], capacity=len(tokens))
        _note("logits in float32")
        return worker.ask("reference", tokens=tokens, path=path, piece=128) | {"path": path}


def _rates(threads: int) -> dict[str, Any]:
    """What this machine can do: text of all rates, and the bytes a second that it reads."""
    machine = measure_machine(threads, report=_note)
    rates = [f"{r.name} {r.figure.median:,.0f} {r.unit}" for r in machine.rates]
    instructions = " ".join(machine.instructions)
    return {
        "rates": f"{', '.join(rates)}" + (f" ({instructions})" if instructions else ""),
        "read_bandwidth": machine.rate(READ),
    }


def _alive(workers: Sequence[Worker], results: Sequence[Result]) -> list[Worker]:
    return [w for w, result in zip(workers, results, strict=True) if not result.failure]


@contextlib.contextmanager
def worker_processes(contestants: Sequence[Contestant], folder: Path) -> Iterator[list[Worker]]:
    """Their processes, ended on the way out."""
    workers: list[Worker] = []
    try:
        for index, contestant in enumerate(contestants):
            workers.append(Worker(contestant, folder / f"worker-{index}.log"))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def _note(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is cleared away
    main()
