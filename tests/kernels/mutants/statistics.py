"""Faults put into the statistics kernels, each of which one of the probes must catch."""

import mlx.core as mx

from pippin.kernels.spec import AttentionSpec
from support.attention_cases import AttentionCase
from support.statistics_checks import by_kernels, check_statistics, check_ties

_FULL = AttentionSpec(6, 2, 64, 0.125, window=37, softcap=1.5)
_CASE = AttentionCase(
    _FULL, 2, 45, 83, sinks=True, slopes=True, starts=(0, 40), ends=(83, 71), margin=3
)
_HALF = AttentionCase(AttentionSpec(4, 2, 64, 0.125), 1, 70, 40)

# (name, what raises when the kernels are wrong)
PROBES = [
    ("every feature", lambda: check_statistics(_CASE)),
    ("half precision, more queries than keys", lambda: check_statistics(_HALF, mx.float16)),
    ("equal weights", lambda: check_ties(by_kernels)),
]

_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
_AFTER_LOAD = f"column_vectors, block, count, thread_index);\n  {_BARRIER}"
_BEFORE_LOAD = f"  {_BARRIER}\n\n  UNROLL for (int b = 0; b < BLOCK / 8; b++) {{\n    UNROLL"
_SHIFT = "best_scores[i] = best_scores[i + 1];\n      best_keys[i] = best_keys[i + 1];"

# (name, text that stands once in statistics.metal or ranking.metal, text put in its place, class
# of fault). Lines around a text that stands more often make it one.
MUTANTS = [
    ("no barrier after a block", _AFTER_LOAD, _AFTER_LOAD.replace(_BARRIER, ""), "missing barrier"),
    (
        "no barrier before the next block",
        _BEFORE_LOAD,
        _BEFORE_LOAD.replace(_BARRIER, ""),
        "missing barrier",
    ),
    (
        "simdgroup barrier before the next block",
        _BEFORE_LOAD,
        _BEFORE_LOAD.replace("threadgroup_barrier", "simdgroup_barrier"),
        "wrong scope",
    ),
    (
        "keys before the window are read",
        "const int first = first_key(position + tile_row, start, window);",
        "const int first = start;",
        "dropped window skip",
    ),
    (
        "keys after the last query are read",
        "const int stop = end_key(position + tile_row + rows - 1, end, causal);",
        "const int stop = end;",
        "dropped causal skip",
    ),
    (
        "queries before the keys are read",
        "causal ? max(tile_row - position, 0) : 0",
        "0",
        "dropped causal skip",
    ),
    (
        "queries past the window are read",
        "min(length, tile_row + rows - 1 + window - position)",
        "length",
        "dropped window skip",
    ),
    (
        "window of the tile's first key",
        "tile_row + rows - 1 + window",
        "tile_row + window",
        "wrong window skip",
    ),
    ("keys that do not exist are read", "exists ? min", "true ? min", "ragged batch"),
    (
        "rows that meet nothing are read",
        "const int needed = first < stop ? rows : 0;",
        "const int needed = rows;",
        "wasted reads",
    ),
    ("keys before start and window count", "key >= first_key(p, start, window) &&", "", "mask"),
    (
        "keys after the query count",
        "&&\n          key < end_key(p, end, causal);",
        ";",
        "mask",
    ),
    (
        "columns past the block count",
        "row < rows && other < stop &&",
        "row < rows &&",
        "out of bounds",
    ),
    ("aligned top left", "const int position = end - length;", "const int position = 0;", "mask"),
    (
        "log-sum-exp of the first sequence",
        "lse + batch * lse_strides[0] + head",
        "lse + head",
        "wrong stride",
    ),
    ("log-sum-exp added", "float(key - p) - sum;", "float(key - p) + sum;", "numerics"),
    ("distances of the wrong sign", "slope * float(key - p)", "slope * float(p - key)", "ALiBi"),
    ("bias in base e", "score = bias * LOG2E +", "score = bias +", "numerics"),
    ("entropy in bits", "uncertainty * LN2", "uncertainty", "numerics"),
    (
        "scores in the type of the keys",
        "simdgroup_matrix<float, 8, 8> products[BLOCK / 8];",
        "simdgroup_matrix<T, 8, 8> products[BLOCK / 8];",
        "accumulation",
    ),
    ("mass of half the row", "key_mass += simd_shuffle_xor(key_mass, 8);", "", "reduction"),
    (
        "entropy of the wrong lanes",
        "simd_shuffle_xor(uncertainty, 8)",
        "simd_shuffle_xor(uncertainty, 2)",
        "reduction",
    ),
    (
        "mass by three lanes more",
        "if (row < rows && column == 0) {\n  mass",
        "if (row < rows) {\n  mass",
        "race",
    ),
    ("tile tail is written", "const bool writes = row < rows &&", "const bool writes =", "race"),
    (
        "masses of the key heads",
        "mass[(long(batch) * q_shape[1] + head)",
        "mass[(long(batch) * q_shape[1] + kv_head)",
        "race",
    ),
    ("query head for key head", "head / (q_shape[1] / k_shape[1])", "head % k_shape[1]", "GQA"),
    (
        "a key enters only above the best",
        "score > best_scores[TOP - 1]",
        "score > best_scores[0]",
        "ranking",
    ),
    ("the best key again and again", _SHIFT, "", "ranking"),
    (
        "best of two lanes",
        "take_better(score, key, simd_shuffle_xor(score, 8), simd_shuffle_xor(key, 8));",
        "",
        "ranking",
    ),
    ("higher ids first", "key < other_key", "key > other_key", "ranking"),
    (
        "a displaced key is lost",
        "key = later_key;",
        "key = later_key; break;",
        "ranking",
    ),
]
