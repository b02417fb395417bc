"""The rates of a Mac's GPU, through mlx."""

from collections.abc import Callable

import mlx.core as mx

from .bench_machine import FP32, NBITS, ONE_ROW, READ, Load

FP16 = "fp16 multiply"
_ROWS, _SIZE = 512, 4096


def loads(size: int) -> list[Callable[[], Load]]:
    """What makes each load; `size` bytes are read where memory decides."""
    return [
        lambda: read(size),
        lambda: product(FP32, mx.float32),
        lambda: product(FP16, mx.float16),
        lambda: packed_product(NBITS, _ROWS, 1),
        lambda: packed_product(ONE_ROW, 1, max(1, size // 4 // (_SIZE * _SIZE // 2))),
    ]


def read(size: int) -> Load:
    """Every number of a buffer once."""
    buffer = mx.ones(size // 4, mx.float32)
    mx.eval(buffer)
    return Load("mlx", READ, "GB/s", buffer.nbytes, lambda: mx.eval(mx.max(buffer)))


def product(name: str, dtype: mx.Dtype, rows: int = _ROWS, size: int = _SIZE) -> Load:
    x = mx.random.normal((rows, size)).astype(dtype)
    weights = mx.random.normal((size, size)).astype(dtype)
    mx.eval(x, weights)
    return Load("mlx", name, "Gop/s", 2 * rows * size * size, lambda: mx.eval(x @ weights))


def packed_product(name: str, rows: int, count: int, size: int = _SIZE) -> Load:
    """`rows` rows through `count` weights of 4 bits, one after another."""
    options = {"group_size": 64, "bits": 4}
    x = mx.random.normal((rows, size)).astype(mx.float16)
    packed = []
    for _ in range(count):
        weights = (mx.random.normal((size, size)) / size).astype(mx.float16)
        packed.append(mx.quantize(weights, **options))
        mx.eval(packed[-1])

    def run() -> None:
        y = x
        for words, scales, biases in packed:
            y = mx.quantized_matmul(y, words, scales, biases, **options)
        mx.eval(y)

    if rows > 1:
        return Load("mlx", name, "Gop/s", 2 * rows * size * size * count, run)
    return Load("mlx", name, "GB/s", sum(part.nbytes for parts in packed for part in parts), run)
