"""`pippin bench`: how fast and how large each backend is."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..runtime.errors import InputError
from .console import Progress, format_bytes, note, print_json, print_table
from .options import (
    json_option,
    model_argument,
    offline_option,
    threads_option,
    weights_option,
)

KERNELS, MACHINE = "kernels", "machine"

if TYPE_CHECKING:
    from ..apps.bench import Figure, Limit, Measurement


@click.command("bench")
@model_argument
@click.option(
    "--backend",
    type=click.Choice(("mlx", "onnx")),
    multiple=True,
    help="Backend to measure; may be repeated.  [default: all that run here]",
)
@click.option(
    "--rounds",
    type=int,
    default=5,
    show_default=True,
    help="Rounds after a warm-up; a figure whose rounds take over a minute has fewer.",
)
@weights_option
@threads_option
@offline_option
@json_option
def command(
    model: str,
    backend: tuple[str, ...],
    rounds: int,
    weights: str | None,
    threads: int | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Measure MODEL's speed and memory.

    Load time, prefill, decoding, decoding of 8 sequences together (all their tokens, and beside a
    single sequence in turn) and the largest resident set with one sequence, on each backend. Each
    backend runs in fresh processes. Figures are medians, with the extremes in brackets.

    Percentages, for onnx, are of this machine's limit: a step of decoding cannot be faster than all
    weights and the KV cache are read from memory, prefill not faster than its multiplications at
    this machine's rate for the kind of numbers that the graph multiplies.

    The word machine in MODEL's place prints those rates, and takes --threads, --rounds and --json.
    The word kernels measures our Metal attention kernels beside MLX's own operations, case by case;
    that takes --rounds and --json alone, and a Mac. A directory of either name is ./machine or
    ./kernels.
    """
    if model == KERNELS:
        if backend or weights or threads or offline:
            raise click.UsageError("bench kernels takes no option but --rounds and --json")
        _kernels(rounds, as_json)
        return
    if model == MACHINE:
        if backend or weights or offline:
            raise click.UsageError("bench machine takes no option but --threads, --rounds, --json")
        _machine(threads, rounds, as_json)
        return
    from ..apps.bench import bench

    with Progress() as progress:
        results = bench(
            model,
            backend,
            rounds=rounds,
            weights=weights,
            threads=threads,
            fetch=not offline,
            stages=progress.stage,
            report=note,
        )
    if as_json:
        print_json({"model": model, "rounds": rounds, "backends": [asdict(r) for r in results]})
        return
    rows = [
        [
            r.backend,
            _show(r.load_seconds, 2),
            _show(r.prefill, limit=r.limits.get("prefill")),
            _show(r.decode_short, limit=r.limits.get("decode_short")),
            _show(r.decode_long, limit=r.limits.get("decode_long")),
            _together(r),
            "-" if r.peak_bytes is None else format_bytes(r.peak_bytes),
        ]
        for r in results
    ]
    print_table(
        rows,
        [
            "BACKEND",
            "LOAD s",
            "PREFILL 512 tok/s",
            "DECODE tok/s",
            "AT 2,048 tok/s",
            "8 TOGETHER tok/s",
            "PEAK RSS",
        ],
    )


def _machine(threads: int | None, rounds: int, as_json: bool) -> None:
    from ..apps.bench_machine import measure_machine

    machine = measure_machine(threads, rounds=rounds, report=note)
    if as_json:
        print_json({"rounds": rounds, **asdict(machine)})
        return
    sets = ", ".join(machine.instructions) or "unknown"
    click.echo(f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads used")
    click.echo(f"instruction sets: {sets}")
    rows = [[r.backend, r.name, _show(r.figure), r.unit] for r in machine.rates]
    print_table(rows, ["BACKEND", "RATE", "MEDIAN", "UNIT"])


def _kernels(rounds: int, as_json: bool) -> None:
    try:
        from ..apps.bench_kernels import bench_kernels
    except ImportError as error:
        raise InputError(f"mlx cannot be imported: {error}; there is no kernel to time") from error

    timings = bench_kernels(rounds=rounds, report=note)
    if as_json:
        print_json({"rounds": rounds, "kernels": [asdict(timing) for timing in timings]})
        return
    rows = [
        [
            t.case,
            t.kernel,
            t.chosen,
            _show(t.kernel_ms, 3),
            _show(t.mlx_ms, 3),
            _show(t.ratio, 2),
            f"{t.difference:.1e}",
        ]
        for t in timings
    ]
    print_table(
        rows,
        ["ATTENTION", "KERNEL", "CHOSEN", "KERNEL ms", "MLX ms", "MLX / KERNEL", "DIFFERENCE"],
    )


def _together(result: "Measurement") -> str:
    ratio = result.batch_ratio
    shown = _show(result.decode_batch, limit=result.limits.get("decode_batch"))
    return shown + (f" {ratio.median:.2f} ×" if ratio else "")


def _show(figure: "Figure | None", digits: int = 1, limit: "Limit | None" = None) -> str:
    if figure is None:
        return "-"
    share = "" if limit is None else f" {limit.share:.0%}"
    return f"{figure.median:.{digits}f} [{figure.low:.{digits}f}–{figure.high:.{digits}f}]{share}"
