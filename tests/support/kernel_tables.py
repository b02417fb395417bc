"""The tables of docs/kernels.md, but for that of the mutants.

`PYTHONPATH=tests python -m support.kernel_tables`; `--write` puts them into the document. The
formulas are those that the tests hold the emulator's byte counts to; MLX's side is counted from the
kernels in its wheel and from its operations.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from emulator import Launch
from pippin.kernels.dispatch import TABLE
from pippin.kernels.spec import AttentionSpec

from . import decode_checks, prefill_bytes
from .attention_cases import AttentionCase
from .decode_checks import check_decode, check_quantized_decode, key_spans, plan_of
from .generated import KERNELS, markdown_table, write_part
from .prefill_bytes import tile_ranges
from .prefill_checks import check_prefill, check_quantized_prefill

HALF = mx.float16
TILE = 32  # query rows of a tile, ours and MLX's


@dataclass(frozen=True)
class Device:
    name: str
    bandwidth: float  # bytes a second
    flops: float  # float32 operations a second


DEVICES = (
    Device("M1", 68e9, 2.6e12),
    Device("M1 Max", 400e9, 10.4e12),
    Device("M4 Max", 546e9, 18e12),
)


@dataclass(frozen=True)
class Cost:
    """Of one call: bytes that threadgroups ask for, each byte once in a threadgroup."""

    bytes: float
    flops: float

    def seconds(self, device: Device) -> tuple[float, str]:
        """The least time, and what sets it."""
        memory, compute = self.bytes / device.bandwidth, self.flops / device.flops
        return max((memory, "memory"), (compute, "compute"))


# measured bytes


def _spec(**features: object) -> AttentionSpec:
    return AttentionSpec(8, 2, 64, 0.125, **features)


MEASURED: tuple[tuple[str, AttentionCase, tuple[int, int] | None], ...] = (
    ("prefill, causal", AttentionCase(_spec(), 1, 64, 256), None),
    ("prefill, window 48", AttentionCase(_spec(window=48), 1, 64, 256), None),
    ("prefill, window 48, 4 × the context", AttentionCase(_spec(window=48), 1, 64, 1024), None),
    ("prefill, ragged", AttentionCase(_spec(), 2, 40, 160, ends=(160, 90)), None),
    ("prefill, 4 bits", AttentionCase(_spec(), 1, 64, 256), (4, 64)),
    ("prefill, 8 bits", AttentionCase(_spec(), 1, 64, 256), (8, 64)),
    ("decode", AttentionCase(_spec(), 1, 1, 1024), None),
    ("decode, 4 queries", AttentionCase(_spec(), 1, 4, 1024), None),
    ("decode, window 48", AttentionCase(_spec(window=48), 1, 1, 1024), None),
    ("decode, ragged", AttentionCase(_spec(), 2, 1, 600, ends=(600, 90)), None),
    ("decode, 4 bits", AttentionCase(_spec(), 1, 1, 1024), (4, 64)),
    ("decode, 8 bits", AttentionCase(_spec(), 1, 1, 1024), (8, 64)),
)


def measured_table() -> str:
    """Keys and values, by formula and by the emulator, beside those of the whole cache."""
    rows = []
    for name, case, layout in MEASURED:
        launch, needed = _run(name, case, layout)
        parts = [part for part in needed if part[0] in "kv"]
        moved = sum(launch.traffic[part].group_read for part in parts)
        whole = 2 * case.batch * case.spec.kv_heads * case.total * case.spec.head_dim * HALF.size
        formula = sum(needed[part] for part in parts)
        rows.append([name, f"{formula:,}", f"{moved:,}", f"{moved / whole:.3f}"])
    headers = ["case (float16, H 8, K 2, D 64)", "formula", "emulator", "of the float16 cache"]
    return markdown_table(headers, rows, numeric=1)


def _run(
    name: str, case: AttentionCase, layout: tuple[int, int] | None
) -> tuple[Launch, dict[str, int]]:
    if name.startswith("prefill"):
        if layout is None:
            return check_prefill(case, HALF), prefill_bytes.prefill_bytes(case, HALF)
        needed = prefill_bytes.quantized_bytes(case, HALF, *layout)
        return check_quantized_prefill(case, HALF, *layout), needed
    if layout is None:
        return check_decode(case, HALF), decode_checks.decode_bytes(case, HALF)
    needed = decode_checks.quantized_bytes(case, HALF, HALF, *layout)
    return check_quantized_decode(case, HALF, *layout), needed


# roofline


def kernel_cost(case: AttentionCase, layout: tuple[int, int] | None) -> Cost:
    """Of our kernel: prefill above 16 queries, else decode and its reduction."""
    spec = case.spec
    if case.length > 16:
        sizes = prefill_bytes.prefill_bytes(case, HALF)
        if layout:
            sizes = prefill_bytes.quantized_bytes(case, HALF, *layout)
        keys = sum(stop - first for first, stop in tile_ranges(case))
        return Cost(sum(sizes.values()), 4 * spec.heads * TILE * keys * spec.head_dim)
    sizes = decode_checks.decode_bytes(case, HALF)
    if layout:
        sizes = decode_checks.quantized_bytes(case, HALF, HALF, *layout)
    plan = plan_of(case, HALF)
    moved = sum(sizes.values())
    if plan.splits > 1:  # the reduction reads what the splits wrote
        outputs = case.batch * spec.heads * case.length * spec.head_dim * HALF.size
        moved += sizes["out"] + sizes["stats"] + outputs
    keys = sum(stop - first for first, stop in key_spans(case)) * plan.tiles
    return Cost(moved, 4 * spec.kv_heads * plan.rows * keys * spec.head_dim)


def mlx_masked(case: AttentionCase, layout: tuple[int, int] | None, itemsize: int = 1) -> Cost:
    """MLX's op with a mask array of `itemsize` bytes. Its tiles of 32 queries go through every
    key; its kernel for up to 8 queries reads the whole mask, and the keys that it lets in."""
    spec = case.spec
    queries = case.batch * spec.heads * case.length
    vectors = 2 * queries * spec.head_dim * HALF.size
    if case.length > 8:
        tiles = case.batch * spec.heads * -(-case.length // TILE)
        moved = tiles * case.total * (2 * spec.head_dim * HALF.size + TILE * itemsize)
        return Cost(vectors + moved, 4 * tiles * TILE * case.total * spec.head_dim)
    keys = sum(stop - first for first, stop in key_spans(case))
    heads = spec.kv_heads if itemsize == 1 else spec.heads  # a bias is another for each head
    moved = spec.kv_heads * keys * 2 * spec.head_dim * HALF.size
    moved += case.batch * heads * case.length * case.total * itemsize
    return Cost(vectors + moved, 4 * spec.heads * case.length * keys * spec.head_dim)


def mlx_biased(case: AttentionCase, layout: tuple[int, int] | None) -> Cost:
    """MLX's op with ALiBi as a float16 mask."""
    return mlx_masked(case, layout, HALF.size)


def mlx_tiles(case: AttentionCase, layout: tuple[int, int] | None) -> Cost:
    """MLX's op, causal, 9 queries or more: a tile of 32 for each query head."""
    sizes = prefill_bytes.prefill_bytes(case, HALF)
    keys = sum(stop - first for first, stop in tile_ranges(case))
    return Cost(
        sum(sizes.values()) - sizes["lse"],
        4 * case.spec.heads * TILE * keys * case.spec.head_dim,
    )


def mlx_unfused(case: AttentionCase, layout: tuple[int, int] | None) -> Cost:
    """`kernels/fallback.py`: each operation reads and writes all float32 scores; keys and values
    once as they are and once in float32."""
    spec = case.spec
    scores = case.batch * spec.heads * case.length * case.total
    passes = 14 + (6 if spec.softcap is not None else 0)
    cache = 2 * case.batch * spec.kv_heads * case.total * spec.head_dim
    vectors = 2 * case.batch * spec.heads * case.length * spec.head_dim * HALF.size
    moved = 4 * passes * scores + cache * (HALF.size + 2 * 4) + vectors
    return Cost(moved, 4 * scores * spec.head_dim)


def mlx_packed(case: AttentionCase, layout: tuple[int, int] | None) -> Cost:
    """Two quantized products, the words once for each query head, and float16 scores: written,
    masked (read, written), softmax (read, written), read."""
    bits, group_size = layout
    spec = case.spec
    scores = case.batch * spec.heads * case.length * case.total
    values = 2 * case.batch * spec.heads * case.total * spec.head_dim
    words = values * bits / 8 + 2 * values / group_size * HALF.size
    vectors = 2 * case.batch * spec.heads * case.length * spec.head_dim * HALF.size
    return Cost(words + 6 * HALF.size * scores + vectors, 4 * scores * spec.head_dim)


Counter = Callable[[AttentionCase, tuple[int, int] | None], Cost]


def _large(**features: object) -> AttentionSpec:
    return AttentionSpec(32, 8, 128, 128**-0.5, **features)


_ENDS = (4096, 3072, 2048, 1024)
ROOFLINE: tuple[tuple[str, AttentionCase, tuple[int, int] | None, Counter], ...] = (
    ("prefill, window 1024", AttentionCase(_large(window=1024), 1, 2048, 4096), None, mlx_masked),
    ("prefill, softcap", AttentionCase(_large(softcap=50.0), 1, 2048, 4096), None, mlx_unfused),
    (
        "prefill, ALiBi",
        AttentionCase(_large(), 1, 2048, 4096, slopes=True),
        None,
        mlx_biased,
    ),
    ("prefill, ragged", AttentionCase(_large(), 4, 512, 4096, ends=_ENDS), None, mlx_masked),
    ("prefill, log-sum-exp", AttentionCase(_large(), 1, 2048, 4096), None, mlx_unfused),
    ("prefill, 4 bits", AttentionCase(_large(), 1, 512, 4096), (4, 64), mlx_packed),
    ("decode, 12 queries", AttentionCase(_large(), 1, 12, 16384), None, mlx_tiles),
    ("decode, window 1024", AttentionCase(_large(window=1024), 1, 1, 16384), None, mlx_masked),
    ("decode, softcap", AttentionCase(_large(softcap=50.0), 1, 1, 16384), None, mlx_unfused),
    ("decode, ALiBi", AttentionCase(_large(), 1, 1, 16384, slopes=True), None, mlx_biased),
    ("decode, ragged", AttentionCase(_large(), 4, 1, 4096, ends=_ENDS), None, mlx_masked),
    ("decode, 4 bits", AttentionCase(_large(), 1, 1, 16384), (4, 64), mlx_packed),
    ("decode, 8 bits", AttentionCase(_large(), 1, 1, 16384), (8, 64), mlx_packed),
)


def roofline_table() -> str:
    """Bytes of our kernel and of MLX, and the least milliseconds that each device needs."""
    rows = []
    for name, case, layout, count in ROOFLINE:
        ours, theirs = kernel_cost(case, layout), count(case, layout)
        shape = f"{case.batch} × {case.length} on {case.total}"
        row = [name, shape, f"{ours.bytes / 1e6:,.1f}", f"{theirs.bytes / 1e6:,.1f}"]
        for device in DEVICES:
            seconds, limit = ours.seconds(device)
            other, _ = theirs.seconds(device)
            row.append(f"{1000 * seconds:.3f} {limit[0]} / {1000 * other:.3f}")
        rows.append(row)
    headers = ["case (float16, H 32, K 8, D 128)", "B × L on S", "ours, MB", "MLX, MB"]
    headers += [f"{device.name}: ours / MLX, ms" for device in DEVICES]
    return markdown_table(headers, rows, numeric=2)


def dispatch_table() -> str:
    """`dispatch.TABLE` as it stands."""
    rows = []
    for rule in TABLE:
        first, last = rule.lengths
        lengths = "any" if first == 0 else f"{first} and more" if last > 999 else f"{first}–{last}"
        if rule.min_group > 1:
            lengths += f", G ≥ {rule.min_group}"
        if rule.min_rows:
            lengths += f", G·L ≥ {rule.min_rows}"
        cache = {None: "any", False: "plain", True: "packed"}[rule.quantized]
        device = "Metal" if rule.metal else "any"
        calls = "plain" if rule.plain else "any"
        rows.append([rule.name, device, cache, calls, lengths, rule.reason])
    return markdown_table(["who", "device", "cache", "call", "L", "why"], rows)


def main() -> None:
    tables = {
        "dispatch": dispatch_table(),
        "bytes": measured_table(),
        "roofline": roofline_table(),
    }
    for name, table in tables.items():
        print(f"{table}\n")
        if "--write" in sys.argv[1:]:
            write_part(KERNELS, name, table)


if __name__ == "__main__":
    main()
