"""How many bytes the prefill kernel must move: the formula, written down apart from the kernel."""

from collections.abc import Iterable

import mlx.core as mx

from emulator import Launch

from .attention_cases import AttentionCase


def tile_ranges(case: AttentionCase, queries: int = 32) -> list[tuple[int, int]]:
    """(first, stop) of the keys that each tile of `queries` rows reads, sequence by sequence.

    A tile reads from the first key that its first row sees to the last that its last row sees.
    """
    ranges = []
    for b in range(case.batch):
        start = case.starts[b] if case.starts else 0
        end = case.ends[b] if case.ends else case.total
        for row in range(0, case.length, queries):
            p = end - case.length + row
            last = end - case.length + min(row + queries, case.length) - 1
            first = start if case.spec.window is None else max(start, p - case.spec.window + 1)
            stop = min(end, last + 1) if case.spec.causal else end
            ranges.append((first, max(first, stop)))
    return ranges


def prefill_bytes(case: AttentionCase, dtype: mx.Dtype) -> dict[str, int]:
    """Bytes by buffer: H·D·size for each key that a tile reads, queries and outputs once."""
    heads, head_dim = case.spec.heads, case.spec.head_dim
    keys = sum(stop - first for first, stop in tile_ranges(case))
    rows = case.batch * heads * case.length
    return {
        "q": rows * head_dim * dtype.size,
        "k": heads * keys * head_dim * dtype.size,
        "v": heads * keys * head_dim * dtype.size,
        "out": rows * head_dim * dtype.size,
        "lse": rows * 4,
    }


def quantized_bytes(
    case: AttentionCase, dtype: mx.Dtype, bits: int, group_size: int
) -> dict[str, int]:
    """Bytes by buffer; the scales and biases count once for each tile that needs them."""
    plain = prefill_bytes(case, dtype)
    numbers = plain["k"] // dtype.size
    words, factors = numbers * bits // 8, numbers // group_size * dtype.size
    cache = {"k": words, "k_scales": factors, "k_biases": factors}
    cache |= {"v": words, "v_scales": factors, "v_biases": factors}
    return plain | cache


def moved_bytes(launch: Launch, names: Iterable[str]) -> dict[str, int]:
    """Bytes by buffer, read or written, each counted once in a threadgroup."""
    traffic = launch.traffic
    return {name: traffic[name].group_read + traffic[name].unique_written for name in names}


def assert_bytes(launch: Launch, wanted: dict[str, int]) -> None:
    """The launch moved `wanted`; of q, k, v and the outputs no byte was asked for twice."""
    found = moved_bytes(launch, wanted)
    assert found == wanted, f"bytes moved: {found}, should be {wanted}"
    for name in ("q", "k", "v", "out", "lse"):
        asked = launch.traffic[name].read + launch.traffic[name].written
        assert asked == wanted[name], f"bytes of {name}: {asked} asked for, {wanted[name]} needed"
