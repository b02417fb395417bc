"""Measures an LSTM and a decoder of equal size: time by length, gradient by distance."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import numpy as np
import onnxruntime as ort

from ....export.graph import write_graph
from ....export.settings import Settings
from ....mlx_model.caches.full import KVCache
from ....mlx_model.decoder import Decoder
from ....mlx_model.mlx_ops import MlxOps
from ....runtime.cores import physical_cores
from ....runtime.ort_graph import open_session, sharing_cores
from ...bench import Figure, Report, check_rounds, figure
from ...processor import processor_name
from .gradient import share_of_first
from .lstm_graph import write_lstm
from .networks import CONTEXT, LstmModel, describe, make_decoder, make_lstm, random_ids
from .readers import DecoderReader, LstmReader, Reader
from .report import (
    FORGET_CHRONO,
    FORGET_ONE,
    FORGET_ZERO,
    ONE_BY_ONE,
    PARALLEL,
    Network,
    Reach,
    RecurrenceReport,
    Timing,
)

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # tokens; the last is CONTEXT
FIT_FROM = 256  # tokens; below, the fixed cost of a call weighs in
DISTANCES = (10, 20, 50, 100, 200, 500)  # tokens
GAIN_LENGTH = 1024  # tokens that are read with one thread, too
_CHECKED = 64  # tokens that graph and MLX are compared on


def measure_recurrence(
    progress: Report | None = None,
    *,
    rounds: int = 5,
    seeds: int = 5,
    threads: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    distances: Sequence[int] = DISTANCES,
) -> RecurrenceReport:
    """Build both networks, check the graphs against MLX, and measure.

    `threads` are onnxruntime's (None: one a physical core). `lengths` rise up to CONTEXT;
    `distances` rise, and are at least two. Takes about half a minute on 2 cores. Raises InputError
    for fewer than 1 round.
    """
    check_rounds(rounds)
    say = progress or (lambda text: None)
    threads = threads or physical_cores()
    say("writing both networks as graphs")
    lstm, decoder = make_lstm(0), make_decoder(0)
    networks = (describe(lstm), describe(decoder))
    with TemporaryDirectory() as folder:
        readers = open_readers(Path(folder), threads)
        differences = {
            network.name: _difference(model, reader)
            for network, model, reader in zip(networks, (lstm, decoder), readers, strict=True)
        }
        timings = _time(networks, readers, lengths, rounds, say)
        gains = {}
        if threads > 1:
            say("reading with one thread")
            alone = open_readers(Path(folder), 1)
            for network, *pair in zip(networks, alone, readers, strict=True):
                gains[network.name] = _thread_gain(*pair, rounds)
    return RecurrenceReport(
        networks=networks,
        differences=differences,
        timings=timings,
        fit_from=FIT_FROM,
        thread_gains=gains,
        gain_length=GAIN_LENGTH,
        reaches=_reaches(distances, seeds, say),
        rounds=rounds,
        seeds=seeds,
        onnxruntime=ort.__version__,
        threads=threads,
        cpu=processor_name(),
    )


def open_readers(folder: Path, threads: int | None) -> tuple[LstmReader, DecoderReader]:
    """Export the networks of seed 0 to `folder` and open them."""
    write_lstm(make_lstm(0), folder / "lstm.onnx")
    settings = Settings(weights="fp32", context=CONTEXT)
    write_graph(make_decoder(0), folder / "decoder.onnx", settings)
    with sharing_cores():
        return (
            LstmReader(open_session(folder / "lstm.onnx", threads)),
            DecoderReader(open_session(folder / "decoder.onnx", threads)),
        )


def _difference(model: LstmModel | Decoder, reader: Reader) -> float:
    """The graph's largest deviation from MLX in the last token's logits, read either way."""
    ids = random_ids(0, _CHECKED)
    with mx.stream(mx.cpu):
        if isinstance(model, LstmModel):
            logits, _ = model(mx.array([ids]))
        else:
            caches = [KVCache() for _ in range(model.config.layers)]
            logits = model(MlxOps(last=1), mx.array([ids]), caches)
        expected = np.array(logits[0, -1])
    reader.start()
    found = [reader.read(ids).copy()]
    reader.start()
    found.append([reader.read([token]) for token in ids][-1].copy())
    return float(np.abs(np.array(found) - expected).max() / np.abs(expected).max())


def _time(
    networks: Sequence[Network],
    readers: Sequence[Reader],
    lengths: Sequence[int],
    rounds: int,
    say: Report,
) -> tuple[Timing, ...]:
    """Both networks in turn, both ways, `rounds` times after one that does not count."""
    ids = random_ids(1, max(lengths))
    ways: dict[str, Callable[[Reader, list[int], Sequence[int]], list[float]]] = {
        PARALLEL: _read_in_parallel,
        ONE_BY_ONE: _read_one_by_one,
    }
    found: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(-1, rounds):
        say(f"timing, round {number + 1} of {rounds}" if number >= 0 else "warming up")
        for reading, read in ways.items():
            for network, reader in zip(networks, readers, strict=True):
                seconds = read(reader, ids, lengths)
                if number >= 0:
                    found.setdefault((network.name, reading), []).append(seconds)
    timings = []
    for (name, reading), table in found.items():
        figures = tuple(figure(column) for column in zip(*table, strict=True))
        medians = [each.median for each in figures]
        timings.append(Timing(name, reading, tuple(lengths), figures, growth(lengths, medians)))
    return tuple(timings)


def _thread_gain(alone: Reader, together: Reader, rounds: int) -> Figure:
    """How much faster a text is read with all threads; a ratio a round, after one round more."""
    ids, ratios = random_ids(1, GAIN_LENGTH), []
    for _ in range(rounds + 1):
        one, all_threads = (
            _read_in_parallel(reader, ids, (GAIN_LENGTH,))[0] for reader in (alone, together)
        )
        ratios.append(one / all_threads)
    return figure(ratios[1:])


def _read_in_parallel(reader: Reader, ids: list[int], lengths: Sequence[int]) -> list[float]:
    """Seconds of a call with each number of tokens."""
    seconds = []
    for length in lengths:
        part = ids[:length]
        reader.start()
        began = time.perf_counter()
        reader.read(part)
        seconds.append(time.perf_counter() - began)
    return seconds


def _read_one_by_one(reader: Reader, ids: list[int], lengths: Sequence[int]) -> list[float]:
    """Seconds until each number of tokens was read, in one pass over the longest text."""
    seconds = []
    reader.start()
    began = time.perf_counter()
    for first, last in pairwise((0, *lengths)):
        for token in ids[first:last]:
            reader.read((token,))
        seconds.append(time.perf_counter() - began)
    return seconds


def growth(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent a of seconds ~ length^a: the least squares slope of their logarithms.

    Of the lengths from FIT_FROM on, or of all where fewer than two are so long.
    """
    points = [(n, s) for n, s in zip(lengths, seconds, strict=True) if n >= FIT_FROM]
    if len(points) < 2:
        points = list(zip(lengths, seconds, strict=True))
    x, y = (np.log(column) for column in zip(*points, strict=True))
    return float(np.polyfit(x, y, 1)[0]) if len(points) > 1 else math.nan


def _reaches(distances: Sequence[int], seeds: int, say: Report) -> tuple[Reach, ...]:
    """The decoder, and the LSTM with each start of its forget gates, on the same texts."""
    makers: list[tuple[str, str, Callable[[int], LstmModel | Decoder]]] = [
        ("LSTM", f"forget gate {forget}", lambda seed, forget=forget: make_lstm(seed, forget))
        for forget in (FORGET_ZERO, FORGET_ONE, FORGET_CHRONO)
    ]
    makers.append(("decoder", "", make_decoder))
    reaches = []
    for network, initialisation, make in makers:
        shares: list[list[float]] = []
        for seed in range(seeds):
            name = f"{network}, {initialisation}" if initialisation else network
            say(f"gradient of the {name}: {seed + 1} of {seeds}")
            model = make(seed)
            *ids, target = random_ids(seed, max(distances) + 2)
            shares.append([share_of_first(model, ids[: d + 1], target) for d in distances])
        figures = tuple(figure(column) for column in zip(*shares, strict=True))
        reaches.append(Reach(network, initialisation, tuple(distances), figures))
    return tuple(reaches)
