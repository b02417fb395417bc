"""How fast this machine can be: memory read, and multiplications by what runs the models here.

Every rate is the median of several rounds after a warm-up. Weights of a rate that memory decides
are random and far larger than the last cache: onnxruntime keeps equal ones once.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.cores import physical_cores
from ..runtime.memory import available_bytes
from .bench import Figure, Report, check_rounds, figure
from .processor import instruction_sets, last_cache_bytes, processor_name

_ROUND = 0.08  # seconds of one round, at least
_ROWS = 256  # rows of the products, as many as a chunk of a prompt has
_SIZE = 2048  # rows and columns of their weights
_BLOCK = 32  # weights that share one scale
_MIB = 2**20

READ, ONE_ROW = "memory read", "4-bit, one row"
FP32, INT8, NBITS = "fp32 multiply", "int8 multiply", "4-bit multiply"


@dataclass(frozen=True)
class Rate:
    """What one backend does of something in a second."""

    backend: str  # "onnx" or "mlx"; reading by "onnx" is the CPU's, whoever reads
    name: str
    unit: str  # GB/s; Gop/s, where a multiplication and its addition are two
    figure: Figure


@dataclass(frozen=True)
class Machine:
    """A machine, and its rates."""

    cpu: str
    cores: int  # logical, of the whole machine
    threads: int  # that were used
    instructions: tuple[str, ...]  # instruction sets that decide how fast weights are multiplied
    rates: tuple[Rate, ...]

    def rate(self, name: str, backend: str = "onnx") -> float | None:
        """Bytes or operations in a second; None where it was not measured."""
        found = (r for r in self.rates if (r.backend, r.name) == (backend, name))
        return next((1e9 * rate.figure.median for rate in found), None)


@dataclass(frozen=True)
class Load:
    """What is timed, and how much of it one call is."""

    backend: str
    name: str
    unit: str
    work: float  # bytes or operations of one call
    run: Callable[[], Any]


# makes a load; its weights live only as long as it is measured
Make = Callable[[], Load]


def measure_machine(
    threads: int | None = None,
    *,
    rounds: int = 7,
    size: int | None = None,
    report: Report | None = None,
) -> Machine:
    """The rates with `threads` (None: one a physical core); a few seconds.

    `size` is how many bytes are read where memory decides; None for far more than the last cache,
    as far as there is room. Raises InputError for fewer than 1 round.
    """
    check_rounds(rounds)
    threads = threads or physical_cores()
    size = size or _beyond_caches()
    makes: list[Make] = [
        lambda: _read(threads, size),
        lambda: _product(FP32, threads),
        lambda: _product(INT8, threads),
        lambda: _product(NBITS, threads),
        lambda: _one_row(threads, size // 4),
    ]
    if _has_gpu():
        from .bench_machine_mlx import loads

        makes += loads(size)
    rates = []
    for make in makes:
        load = make()
        if report:
            report(f"{load.backend}: {load.name}")
        rates.append(Rate(load.backend, load.name, load.unit, _measure(load, rounds)))
        del load  # before the next one's weights are made
    return Machine(
        cpu=processor_name(),
        cores=os.cpu_count() or 1,
        threads=threads,
        instructions=instruction_sets(),
        rates=tuple(rates),
    )


def _has_gpu() -> bool:
    from .models import has_mlx

    if not has_mlx():
        return False
    from ..kernels.dispatch import has_metal

    return has_metal()


def _beyond_caches() -> int:
    """Bytes that no cache holds a good part of; a sixteenth of the free memory at most, since the
    weights made of them are held several times over while they are loaded."""
    wanted = max(512 * _MIB, 16 * last_cache_bytes())
    available = available_bytes()
    return wanted if available is None else max(64 * _MIB, min(wanted, available // 16))


def _measure(load: Load, rounds: int) -> Figure:
    """10⁹ units in a second, of `rounds` rounds of equally many calls."""
    load.run()
    seconds = [_seconds(load, 1) for _ in range(3)]
    calls = max(1, round(_ROUND / statistics.median(seconds)))
    return figure([load.work * calls / _seconds(load, calls) / 1e9 for _ in range(rounds)])


def _seconds(load: Load, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        load.run()
    return time.perf_counter() - started


def _read(threads: int, size: int) -> Load:
    """Every number of a buffer once, each thread in parts of its own."""
    buffer = np.ones(size // 4, np.float32)
    parts = np.array_split(buffer, 8 * threads)
    pool = ThreadPoolExecutor(threads)

    def run() -> None:
        list(pool.map(lambda part: np.dot(part, part), parts))

    return Load("onnx", READ, "GB/s", buffer.nbytes, run)


def _product(name: str, threads: int) -> Load:
    """[_ROWS, _SIZE] by [_SIZE, _SIZE], with weights that onnxruntime packs beforehand."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    numbers = random.standard_normal((_ROWS, _SIZE)).astype(np.float32)
    kinds = TensorProto.FLOAT, TensorProto.FLOAT
    if name == FP32:
        weights = random.standard_normal((_SIZE, _SIZE)).astype(np.float32)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    elif name == INT8:
        kinds = TensorProto.UINT8, TensorProto.INT32
        numbers = random.integers(0, 256, numbers.shape, np.uint8)
        weights = random.integers(-128, 128, (_SIZE, _SIZE), np.int8)
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    else:
        weights = _packed(random, _SIZE, _SIZE)
        node = _nbits_node("x", "w", "y", _SIZE)
    tensors = [numpy_helper.from_array(weights, "w")]
    if name == NBITS:
        tensors.append(numpy_helper.from_array(_scales(_SIZE, _SIZE), "scales"))
    session = _session([node], tensors, kinds, (_ROWS, _SIZE), threads)
    work = 2 * _ROWS * _SIZE * _SIZE
    return Load("onnx", name, "Gop/s", work, lambda: session.run(None, {"x": numbers}))


def _one_row(threads: int, size: int) -> Load:
    """One row through many 4-bit weights after another, as in decoding."""
    from onnx import TensorProto, numpy_helper

    width = 2 * _SIZE
    count = max(1, size // (width * width // 2))
    random = np.random.default_rng(0)
    scales = _scales(width, width)
    nodes, tensors = [], [numpy_helper.from_array(scales, "scales")]
    for index in range(count):
        tensors.append(numpy_helper.from_array(_packed(random, width, width), f"w{index}"))
        name = "y" if index == count - 1 else f"x{index + 1}"
        nodes.append(_nbits_node(f"x{index}" if index else "x", f"w{index}", name, width))
    kinds = TensorProto.FLOAT, TensorProto.FLOAT
    session = _session(nodes, tensors, kinds, (1, width), threads)
    row = np.ones((1, width), np.float32)
    work = count * (width * width // 2 + scales.nbytes)
    return Load("onnx", ONE_ROW, "GB/s", work, lambda: session.run(None, {"x": row}))


def _packed(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Random 4-bit weights as MatMulNBits takes them."""
    shape = (columns, rows // _BLOCK, _BLOCK // 2)
    return np.frombuffer(random.bytes(rows * columns // 2), np.uint8).reshape(shape)


def _scales(rows: int, columns: int) -> np.ndarray:
    # small enough that no row grows beyond float32 on its way through many products
    return np.full((columns, rows // _BLOCK), 1e-3, np.float32)


def _nbits_node(x: str, weights: str, y: str, width: int) -> Any:
    from onnx import helper

    options = {"K": width, "N": width, "bits": 4, "block_size": _BLOCK, "accuracy_level": 4}
    inputs = [x, weights, "scales"]
    return helper.make_node("MatMulNBits", inputs, [y], domain="com.microsoft", **options)


def _session(
    nodes: Sequence[Any],
    tensors: Sequence[Any],
    kinds: tuple[int, int],
    shape: tuple[int, int],
    threads: int,
) -> Any:
    """A session of a graph from x to y, of element types `kinds` and one shape."""
    import onnxruntime as ort
    from onnx import helper

    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind in zip("xy", kinds, strict=True)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "rate", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    providers = ["CPUExecutionProvider"]
    return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
