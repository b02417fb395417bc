"""Pippin beside onnxruntime-genai and llama.cpp: the same weights, interleaved in one run.

    python benchmarks/peers.py [--rounds 5] [--peers llama.cpp,onnxruntime-genai] [--json]

Each contestant is one process that loads the model once. Each round measures each of them in
turn, with the same token ids and threads: prefill, decode after a short prompt, decode after a
long one. Peers are installed into environments of their own the first time (llama.cpp is
compiled). What cannot be installed or fails is named with its reason.
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
from peer_env import Peer, ensure_installed, known_peers
from peer_inputs import export_weights, prepare_prompts
from peer_report import build_report, render
from peer_rounds import make_metrics, run_rounds
from peer_worker import Contestant, Worker

from pippin.commands.console import print_json
from pippin.mlx_model.checkpoints import store
from pippin.runtime.cores import physical_cores
from pippin.runtime.errors import InputError, PippinError

_MODEL = "smollm2"
_PIPPIN = {"onnx-q4": "q4", "onnx-int8": "int8", "mlx": ""}  # name -> weights of the export


@click.command(help=__doc__.split("\n")[0])
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--peers", default=",".join(known_peers()), show_default=True)
@click.option("--pippin", default="onnx-q4,onnx-int8", show_default=True, help="Also: mlx.")
@click.option("--prefill", type=click.IntRange(min=8), default=512, show_default=True)
@click.option("--context", type=click.IntRange(min=8), default=2048, show_default=True)
@click.option("--decode", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="[default: one a physical core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), help="Markdown file.")
def main(
    peers: str, pippin: str, as_json: bool, write: Path | None, threads: int | None, **sizes: int
) -> None:
    try:
        report = compare(
            _choose("peer", peers, known_peers()),
            list(_choose("backend", pippin, _PIPPIN)),
            {"threads": threads or physical_cores()} | sizes,
        )
    except PippinError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    if write:
        write.write_text(render(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        click.echo(render(report), nl=False)
    sys.exit(1 if report["missing"] else 0)


def compare(peers: dict[str, Peer], backends: Sequence[str], settings: dict[str, int]) -> dict:
    """Install, export, measure; returns the report as one JSON document.

    `settings`: threads, rounds, prefill, context, decode. Raises PippinError where Pippin itself
    cannot run; a peer that cannot is listed under "missing".
    """
    pythons, absent = _install(peers)
    gguf = store.resolve(_MODEL, fetch=True)
    with tempfile.TemporaryDirectory(prefix="pippin-peers-") as folder:
        weights = {"q4", *(_PIPPIN[name] for name in backends)} - {""}
        exports = export_weights(gguf, sorted(weights), Path(folder), _note)
        contestants = _contestants(backends, pythons, gguf, exports)
        short, long = prepare_prompts(gguf, max(settings["prefill"], settings["context"]))
        metrics = make_metrics(short, long, settings)
        load = {
            "threads": settings["threads"],
            "capacity": len(long) + settings["decode"] + 8,
        }
        watch = Watch()
        with _workers(contestants, Path(folder)) as workers:
            results = run_rounds(workers, metrics, settings["rounds"], load, _note)
    about = {
        "model": gguf.name,
        "machine": describe(),
        "others_cpu_share": watch.others(),
        "settings": settings,
    }
    return build_report(about, metrics, results, absent)


def _choose(kind: str, text: str, known: dict[str, Any]) -> dict[str, Any]:
    """The entries that a comma-separated list names. Raises InputError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise InputError(f"no {kind} is called {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in names}


def _install(peers: dict[str, Peer]) -> tuple[dict[Peer, str], dict[str, str]]:
    """The Python of each peer that is there, and the reason by name for each that is not."""
    pythons, absent = {}, {}
    for name, peer in peers.items():
        try:
            pythons[peer] = ensure_installed(peer, _note)
        except PippinError as error:
            absent[name] = str(error)
    return pythons, absent


def _contestants(
    backends: Sequence[str], pythons: dict[Peer, str], gguf: Path, exports: dict[str, Path]
) -> list[Contestant]:
    """Pippin's backends, then the peers; llama.cpp reads the GGUF, the others what fits them."""
    ours = []
    for name in backends:
        backend, _, weights = name.partition("-")
        model = exports[weights] if weights else gguf
        options = {"model": str(model), "backend": backend}
        label = f"pippin {backend} {weights}".strip()
        ours.append(Contestant(label, sys.executable, "worker_pippin.py", options, peer=False))
    theirs = []
    for peer, python in pythons.items():
        model = gguf if peer.name == "llama.cpp" else exports["q4"]
        theirs.append(Contestant(peer.name, python, peer.worker, {"model": str(model)}))
    return ours + theirs


@contextlib.contextmanager
def _workers(contestants: Sequence[Contestant], folder: Path) -> Iterator[list[Worker]]:
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
