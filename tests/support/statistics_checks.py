"""Attention statistics against float64, each number to what rounding its scores can do to it."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from emulator import Launch, emulated
from pippin.kernels.reference import attention_statistics_reference, masked_scores
from pippin.kernels.spec import AttentionSpec
from pippin.kernels.statistics import Statistics, metal_statistics

from .attention_cases import AttentionCase, AttentionInputs, build
from .prefill_bytes import tile_ranges

# A float32 score is off by this much of the magnitudes that went into it; DESIGN §9.
TOLERANCE = 2e-6
_NO_ARRAYS = {"slopes": None, "starts": None, "ends": None}


@dataclass
class Problem:
    """A case with its log-sum-exp, as a kernel gets them and as float64 has them."""

    case: AttentionCase
    inputs: AttentionInputs
    lse: mx.array  # float32, of the float64 attention
    arrays: dict[str, mx.array]  # slopes, starts, ends: those the case has
    wide: dict[str, np.ndarray]  # the same

    def reference(self, top_k: int) -> tuple[np.ndarray, ...]:
        q, k, _ = self.inputs.wide
        lse = np.array(self.lse, np.float64)
        return attention_statistics_reference(q, k, lse, self.case.spec, top_k=top_k, **self.wide)

    def logs(self) -> np.ndarray:
        """ln of each weight, float64 [B, H, L, S]; −inf for keys that are not seen."""
        q, k, _ = self.inputs.wide
        scores = masked_scores(q, k, self.case.spec, **self.wide)
        lse = np.array(self.lse, np.float64)[..., None]
        return np.where(np.isfinite(scores), scores - np.where(np.isfinite(lse), lse, 0), -np.inf)


def problem_of(case: AttentionCase, dtype: mx.Dtype = mx.float32) -> Problem:
    inputs = build(case, dtype)
    lse = mx.array(inputs.reference(case.spec)[1].astype(np.float32))
    arrays = {name: array for name, array in inputs.arrays.items() if name != "sinks"}
    return Problem(case, inputs, lse, arrays, {n: np.array(a) for n, a in arrays.items()})


def assert_statistics(got: Statistics, problem: Problem, top_k: int) -> None:
    """Every field is that of the reference. A weight's relative error is that of its score."""
    mass, entropy, ids, best = problem.reference(top_k)
    logs = problem.logs()
    weights = np.exp(logs)
    size = np.where(weights > 0, np.abs(logs), 0.0)  # of ln w
    lse = np.array(problem.lse, np.float64)[..., None]
    slack = TOLERANCE * weights * (1 + np.where(np.isfinite(lse), np.abs(lse), 0) + size)
    assert_within("mass", got.mass, mass, slack.sum(axis=2))
    assert_within("entropy", got.entropy, entropy, (slack * (1 + size)).sum(axis=3))
    found = np.array(got.top_ids)
    assert got.top_ids.dtype == mx.int32
    np.testing.assert_array_equal(found < 0, ids < 0)
    assert ((found >= -1) & (found < problem.case.total)).all()
    ranks = np.sort(found, axis=-1)
    assert ((ranks[..., 1:] > ranks[..., :-1]) | (ranks[..., 1:] < 0)).all(), "a key twice"
    at = np.maximum(found, 0)
    chosen = np.where(found < 0, 0, np.take_along_axis(weights, at, axis=-1))
    allowed = np.where(found < 0, 0, np.take_along_axis(slack, at, axis=-1)) + 1e-37
    assert_within("weight of a top key", got.top_weights, chosen, allowed)
    assert_within("top weight", got.top_weights, best, 2 * allowed)


def assert_within(what: str, got: mx.array, wanted: np.ndarray, allowed: np.ndarray) -> None:
    assert got.dtype == mx.float32
    error = np.abs(np.array(got, np.float64) - wanted)
    assert (error <= allowed + 1e-37).all(), (
        f"{what} off by {np.nanmax(error):.3g}, {np.isnan(error).sum()} NaN"
    )


def by_kernels(
    q: mx.array,
    k: mx.array,
    lse: mx.array,
    spec: AttentionSpec,
    *,
    top_k: int = 8,
    seed: int = 0,
    **arrays: mx.array,
) -> Statistics:
    """`attention_statistics`, by the kernels in the emulator."""
    with emulated(seed=seed, max_threads=128):
        return metal_statistics(q, k, lse, spec, top_k, **{**_NO_ARRAYS, **arrays})


def check_ties(statistics: Callable[..., Statistics]) -> None:
    """Whole numbers, whose scores are exact: keys of one residue mod 3 weigh the same, and of
    these the lower ids are first."""
    total, length = 90, 41
    k = np.zeros((1, 1, total, 64), np.float32)
    k[0, 0, :, 0] = np.arange(total) % 3
    q = np.zeros((1, 1, length, 64), np.float32)
    q[..., 0] = 2
    spec = AttentionSpec(1, 1, 64, 1.0, window=20)
    scores = masked_scores(q.astype(float), k.astype(float), spec)
    lse = np.log(np.exp(scores).sum(axis=-1)).astype(np.float32)
    got = statistics(mx.array(q), mx.array(k), mx.array(lse), spec, top_k=9)
    wanted = np.argsort(-scores, axis=-1, kind="stable")[..., :9]
    np.testing.assert_array_equal(np.array(got.top_ids), wanted)


def check_statistics(
    case: AttentionCase, dtype: mx.Dtype = mx.float32, top_k: int = 8
) -> list[Launch]:
    """One run of both kernels in the emulator: right, and moving the bytes of the formula."""
    problem = problem_of(case, dtype)
    with emulated(seed=case.seed, max_threads=128) as report:
        got = metal_statistics(
            problem.inputs.q,
            problem.inputs.k,
            problem.lse,
            case.spec,
            top_k,
            **{**_NO_ARRAYS, **problem.arrays},
        )
    assert_statistics(got, problem, top_k)
    for launch, needed in zip(report.launches, statistics_bytes(case, dtype), strict=True):
        for name, size in needed.items():
            traffic = launch.traffic[name]
            assert traffic.read == traffic.group_read == size, (
                f"bytes of {name} in {launch.kernel}: {traffic.read} asked for, {size} needed"
            )
    return report.launches


def statistics_bytes(case: AttentionCase, dtype: mx.Dtype) -> list[dict[str, int]]:
    """Bytes of q and k, first for the kernel that goes through keys, then for the other: each
    vector once for each tile that needs it."""
    row = case.spec.heads * case.spec.head_dim * dtype.size
    starts = [min(32, case.length - at) for at in range(0, case.length, 32)] * case.batch
    ranges = tile_ranges(case)
    queries = sum(n for n, (first, stop) in zip(starts, ranges, strict=True) if first < stop)
    by_query = {"q": queries * row, "k": sum(stop - first for first, stop in ranges) * row}
    tiles = key_tile_ranges(case)
    by_key = {
        "q": sum(max(stop - first, 0) for _, first, stop in tiles) * row,
        "k": sum(keys for keys, first, stop in tiles if first < stop) * row,
    }
    return [by_query, by_key]


def key_tile_ranges(case: AttentionCase, keys: int = 32) -> list[tuple[int, int, int]]:
    """(keys, first, stop) of the queries that each tile of `keys` meets, sequence by sequence:
    from the first that its first key is seen by to the last that its last key is seen by."""
    tiles = []
    for b in range(case.batch):
        start = case.starts[b] if case.starts else 0
        end = case.ends[b] if case.ends else case.total
        for key in range(0, case.total, keys):
            count = min(keys, case.total - key)
            first = max(key - (end - case.length), 0) if case.spec.causal else 0
            stop = case.length
            if case.spec.window is not None:
                stop = min(stop, key + count - 1 + case.spec.window - (end - case.length))
            exists = key < end and key + count > start
            tiles.append((count, first, stop if exists else first))
    return tiles
