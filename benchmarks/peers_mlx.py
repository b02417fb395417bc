"""Pippin's MLX engine beside mlx-lm: the same folder, prompts and device, interleaved.

    python benchmarks/peers_mlx.py [--rounds 3] [--prefill 64] [--decode 16] [--json]

On a Mac both run on the GPU; on a CPU both compute in float32, and MLX is slow there, so that
the numbers of tokens are small by default. Overhead is the Python of one step: building its graph
and choosing the token, the evaluation left out.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from machine import Watch, describe
from peer_env import ensure_installed, mlx_lm
from peer_inputs import running_text
from peer_report import build_report
from peer_rounds import make_metrics, run_rounds
from peer_tables import render
from peer_worker import Contestant, WorkerError
from peers import worker_processes

from pippin.commands.console import print_json
from pippin.mlx_model.checkpoints import store
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.cores import physical_cores
from pippin.runtime.errors import InputError, PippinError

_MODEL = "smollm2"
_SPARE = 64  # tokens of room beside the longest prompt and its reply


@click.command(help=__doc__.split("\n")[0])
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--prefill", type=click.IntRange(min=8), default=64, show_default=True)
@click.option("--decode", type=click.IntRange(min=2), default=16, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(as_json: bool, **sizes: int) -> None:
    try:
        report = compare(sizes)
    except PippinError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    if as_json:
        print_json(report)
    else:
        click.echo(render(report), nl=False)
        for name, seconds in report["overhead_seconds"].items():
            click.echo(f"\nPython of one step, {name}: {seconds * 1000:.2f} ms", nl=False)
        click.echo()
    sys.exit(1 if report["missing"] else 0)


def compare(sizes: dict[str, int]) -> dict[str, Any]:
    """Install mlx-lm, write the folder, measure; returns the report as one JSON document.

    `sizes`: rounds, prefill, decode. Raises PippinError when mlx-lm or the folder cannot be had.
    """
    peer = mlx_lm()
    python = ensure_installed(peer, _note)
    gguf = store.resolve(_MODEL, fetch=True)
    text = running_text(gguf, sizes["prefill"])
    settings = sizes | {"threads": physical_cores()}
    asked = {"prefill": [sizes["prefill"]], "context": [8, sizes["prefill"]]}
    metrics = make_metrics(text, asked | {"decode": sizes["decode"]}, (), ())
    load = {"threads": settings["threads"], "capacity": sum(sizes.values()) + _SPARE}
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="pippin-mlx-") as name:
        folder = str(_write_folder(gguf, Path(name)))
        ours = {"model": folder, "backend": "mlx"}
        contestants = [
            Contestant("pippin mlx", sys.executable, "worker_pippin.py", ours, peer=False),
            Contestant(peer.name, python, peer.worker, {"model": folder}),
        ]
        with worker_processes(contestants, Path(name)) as workers:
            results = run_rounds(workers, metrics, sizes["rounds"], load, _note)
            overhead = {
                worker.contestant.name: _overhead(worker, text[:8], sizes)
                for worker, result in zip(workers, results, strict=True)
                if not result.failure
            }
    about = {
        "model": gguf.name,
        "machine": describe(),
        "settings": settings,
        "others_cpu_share": watch.others(),
        "overhead_seconds": {k: v for k, v in overhead.items() if v is not None},
    }
    return build_report(about, metrics, results, {})


def _write_folder(gguf: Path, parent: Path) -> Path:
    """The GGUF's weights in mlx-lm's format, 4 bits in groups of 32."""
    from pippin.mlx_model.quantize import quantize_checkpoint

    _note("writing a folder for both")
    folder = parent / "mlx"
    quantize_checkpoint(open_checkpoint(gguf), folder, bits=4, group_size=32, requantize=True)
    return folder


def _overhead(worker: Any, tokens: list[int], sizes: dict[str, int]) -> float | None:
    """The median over the rounds, in seconds; None when it fails."""
    try:
        rounds = range(sizes["rounds"])
        answers = [worker.ask("overhead", tokens=tokens, count=sizes["decode"]) for _ in rounds]
    except WorkerError as error:
        _note(f"{worker.contestant.name}: {error}")
        return None
    return statistics.median(answer["seconds"] for answer in answers)


def _note(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
