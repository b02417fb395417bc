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

KERNELS = "kernels"

if TYPE_CHECKING:
    from ..apps.bench import Figure


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

    Load time, prefill, decoding and the largest resident set, on each backend. Each backend runs in
    fresh processes. Figures are medians, with the extremes in brackets.

    The word kernels in MODEL's place measures our Metal attention kernels beside MLX's own
    operations, case by case; that takes --rounds and --json alone, and a Mac. A directory of that
    name is ./kernels.
    """
    if model == KERNELS:
        if backend or weights or threads or offline:
            raise click.UsageError("bench kernels takes no option but --rounds and --json")
        _kernels(rounds, as_json)
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
            _show(r.prefill),
            _show(r.decode_short),
            _show(r.decode_long),
            "-" if r.peak_bytes is None else format_bytes(r.peak_bytes),
        ]
        for r in results
    ]
    print_table(
        rows,
        ["BACKEND", "LOAD s", "PREFILL 512 tok/s", "DECODE tok/s", "AT 2,048 tok/s", "PEAK RSS"],
    )


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


def _show(figure: "Figure | None", digits: int = 1) -> str:
    if figure is None:
        return "-"
    return f"{figure.median:.{digits}f} [{figure.low:.{digits}f}–{figure.high:.{digits}f}]"
