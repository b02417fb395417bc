"""Faults put into the prefill kernel, each of which the emulator or the reference must catch."""

import mlx.core as mx

from pippin.kernels.spec import AttentionSpec
from support.attention_cases import AttentionCase

_PLAIN = AttentionSpec(6, 2, 64, 0.125)
_FULL = AttentionSpec(6, 2, 64, 0.125, window=37, softcap=1.5)

# (name, case, dtype, (bits, group) or None), for `prefill_checks.check_prefill` or, with bits,
# `check_quantized_prefill`: one or the other catches each of MUTANTS.
PROBES = [
    ("causal", AttentionCase(_PLAIN, 2, 45, 83, margin=3), mx.float32, None),
    (
        "window",
        AttentionCase(AttentionSpec(6, 2, 64, 0.125, window=20), 2, 45, 83, margin=3),
        mx.float32,
        None,
    ),
    (
        "every feature",
        AttentionCase(
            _FULL, 2, 45, 83, sinks=True, slopes=True, starts=(0, 30), ends=(83, 71), margin=3
        ),
        mx.float32,
        None,
    ),
    (
        "empty rows",
        AttentionCase(_PLAIN, 2, 40, 20, starts=(0, 5), ends=(20, 5)),
        mx.float32,
        None,
    ),
    (
        "ALiBi, not causal",
        AttentionCase(
            AttentionSpec(4, 2, 64, 0.125, causal=False), 1, 40, 70, sinks=True, slopes=True
        ),
        mx.float32,
        None,
    ),
    ("tokens first", AttentionCase(_PLAIN, 1, 40, 70, order="BSKD"), mx.float32, None),
    ("columns apart", AttentionCase(_PLAIN, 1, 40, 70, order="BKDS"), mx.float32, None),
    ("half precision", AttentionCase(_PLAIN, 1, 40, 70), mx.float16, None),
    ("quantized", AttentionCase(_PLAIN, 2, 45, 83, margin=3), mx.float16, (4, 32)),
]

_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
_AFTER_KEYS = f"tile, keys, block, count, thread_index);\n  {_BARRIER}"
_BEFORE_VALUES = f"  {_BARRIER}\n  load_tile<T, D, BK, PITCH, THREADS>(tile, values"
_AFTER_WEIGHTS = f"  {_BARRIER}\n\n  // Weights times values."
_AFTER_VALUES = f"  {_BARRIER}\n}}\n\nmass +="


def _without(text: str) -> str:
    return text.replace(f"  {_BARRIER}", "")


def _scoped(text: str) -> str:
    return text.replace("threadgroup_barrier", "simdgroup_barrier")


# (name, text that stands once in prefill.metal, tile.metal or common.metal, text put in its place,
# class of fault). Lines around a text that stands more often make it one.
MUTANTS = [
    ("no barrier after keys", _AFTER_KEYS, _without(_AFTER_KEYS), "missing barrier"),
    ("no barrier before values", _BEFORE_VALUES, _without(_BEFORE_VALUES), "missing barrier"),
    ("no barrier after values", _AFTER_WEIGHTS, _without(_AFTER_WEIGHTS), "missing barrier"),
    ("no barrier before next keys", _AFTER_VALUES, _without(_AFTER_VALUES), "missing barrier"),
    ("simdgroup barrier after keys", _AFTER_KEYS, _scoped(_AFTER_KEYS), "wrong scope"),
    ("simdgroup barrier before keys", _AFTER_VALUES, _scoped(_AFTER_VALUES), "wrong scope"),
    (
        "barrier without memory",
        _AFTER_KEYS,
        _AFTER_KEYS.replace("mem_threadgroup", "mem_none"),
        "wrong scope",
    ),
    (
        "barrier under a condition of the row",
        _AFTER_WEIGHTS,
        _AFTER_WEIGHTS.replace(_BARRIER, f"if (row < rows) {{ {_BARRIER} }}"),
        "divergent barrier",
    ),
    (
        "keys before the window are read",
        "const int first = first_key(position, start, window), stop",
        "const int first = start, stop",
        "dropped window skip",
    ),
    (
        "window of the last row",
        "const int first = first_key(position, start",
        "const int first = first_key(last_position, start",
        "wrong window skip",
    ),
    (
        "keys after the last row are read",
        "stop = end_key(last_position, end, causal)",
        "stop = end",
        "dropped causal skip",
    ),
    (
        "edge at one end only",
        "block < all_first || block + BK > all_stop",
        "block + BK > all_stop",
        "missing mask",
    ),
    ("edge one block late", "block + BK > all_stop", "block >= all_stop", "missing mask"),
    ("window one key too wide", "p - window + 1", "p - window", "off by one"),
    ("a row sees the next key", "min(end, p + 1)", "min(end, p + 2)", "off by one"),
    (
        "aligned top left",
        "const int position = end - length + tile_row",
        "const int position = tile_row",
        "wrong alignment",
    ),
    ("ends ignored", "end = min(ends[batch], k_shape[2])", "end = k_shape[2]", "ragged batch"),
    ("starts ignored", "start = max(starts[batch], 0)", "start = 0", "ragged batch"),
    ("ends of the first sequence", "min(ends[batch]", "min(ends[0]", "ragged batch"),
    ("ends not cut", "end = min(ends[batch], k_shape[2])", "end = ends[batch]", "out of bounds"),
    (
        "no batch stride",
        "data + batch * strides[0] + head * strides[1]",
        "data + head * strides[1]",
        "wrong stride",
    ),
    (
        "head stride from the shape",
        "keys = head_rows(k, k_strides, batch, kv_head)",
        "keys = head_rows(k + kv_head * k_shape[2] * D, k_strides, batch, 0)",
        "wrong stride",
    ),
    (
        "rows one after another",
        "from.data + (first + row) * from.row",
        "from.data + (first + row) * D",
        "wrong stride",
    ),
    ("columns always together", "from.column == 1", "true", "wrong stride"),
    ("query head for key head", "head / (q_shape[1] / k_shape[1])", "head % k_shape[1]", "GQA"),
    (
        "block tail not cut",
        "const int count = min(BK, stop - block)",
        "const int count = BK",
        "out of bounds",
    ),
    ("tile tail not cut", "rows = min(BQ, length - tile_row)", "rows = BQ", "out of bounds"),
    ("tile tail not cleared", "to[e] = T(0.0f);", "", "uninitialised"),
    ("keys as they lie", "PITCH, ulong2(0, 0), true)", "PITCH)", "transposition"),
    ("no scale", "return qk * (scale * LOG2E);", "return qk * LOG2E;", "numerics"),
    (
        "natural log for the base 2",
        "return qk * (scale * LOG2E);",
        "return qk * scale;",
        "numerics",
    ),
    (
        "softcap before the scale",
        "precise::tanh(qk * scale / cap)",
        "precise::tanh(qk / cap)",
        "numerics",
    ),
    (
        "no running maximum",
        "const float kept = fast::exp2(top - block_top);\n  top = block_top;",
        "const float kept = 1.0f;\n  top = block_top;",
        "numerics",
    ),
    ("outputs not rescaled", "outputs[d].thread_elements()[1] *= kept;", "", "numerics"),
    ("mass not rescaled", "mass *= kept;", "", "numerics"),
    (
        "maximum of half the row",
        "block_top = max(block_top, simd_shuffle_xor(block_top, 8));",
        "",
        "reduction",
    ),
    ("mass of half the row", "mass += simd_shuffle_xor(mass, 8);", "", "reduction"),
    (
        "maximum of the wrong lanes",
        "simd_shuffle_xor(block_top, 8)",
        "simd_shuffle_xor(block_top, 2)",
        "reduction",
    ),
    (
        "masked keys weigh in an empty row",
        "return score < NEG_LIMIT ? 0.0f : fast::exp2(score - top);",
        "return fast::exp2(score - top);",
        "empty row",
    ),
    (
        "mask of minus infinity",
        "constant constexpr float NEG = -1e30f",
        "constant constexpr float NEG = -INFINITY",
        "empty row",
    ),
    ("division by no mass", "mass > 0.0f ? 1.0f / mass : 0.0f", "1.0f / mass", "empty row"),
    (
        "sink in every lane",
        "column == 0 ? weight_log2(top, top) : 0.0f",
        "weight_log2(top, top)",
        "sink",
    ),
    ("sink without mass", "column == 0 ? weight_log2(top, top) : 0.0f", "0.0f", "sink"),
    ("sink of the key head", "sinks[head]", "sinks[kv_head]", "sink"),
    ("slope of the key head", "slopes[head]", "slopes[kv_head]", "ALiBi"),
    ("distances of the wrong sign", "float(j - row_stop + 1)", "float(row_stop - 1 - j)", "ALiBi"),
    (
        "log-sum-exp without the shift",
        "log_sum_exp(top, mass) + shift",
        "log_sum_exp(top, mass)",
        "ALiBi",
    ),
    ("sink without the shift", "(sinks[head] - shift) * LOG2E", "sinks[head] * LOG2E", "ALiBi"),
    ("log-sum-exp in base 2", "(top + log2(mass)) * LN2", "top + log2(mass)", "log-sum-exp"),
    ("log-sum-exp by three lanes more", "if (column == 0) {\n    lse", "{\n    lse", "race"),
    (
        "output in half the columns",
        "out[to * D + d * 8 + column + 1] =",
        "out[to * D + d * 8 + column] =",
        "race",
    ),
    (
        "output of the wrong sequence",
        "(long(batch) * q_shape[1] + head)",
        "(long(batch) + head)",
        "race",
    ),
    (
        "scores in the type of the keys",
        "simdgroup_matrix<float, 8, 8> scores[BK / 8];",
        "simdgroup_matrix<T, 8, 8> scores[BK / 8];",
        "accumulation",
    ),
    (
        "outputs in the type of the values",
        "simdgroup_matrix<float, 8, 8> outputs[D / 8];",
        "simdgroup_matrix<T, 8, 8> outputs[D / 8];",
        "accumulation",
    ),
    (
        "weights of three digits in the mass",
        "mass += weight;",
        "mass += round(weight * 4096.0f) / 4096.0f;",
        "accumulation",
    ),
    (
        "values of the next head",
        "values = head_rows(v, v_strides, batch, kv_head)",
        "values = head_rows(v, v_strides, batch, (kv_head + 1) % k_shape[1])",
        "GQA",
    ),
    (
        "tile four times as large",
        "threadgroup T tile[BK * PITCH];",
        "threadgroup T tile[4 * BK * PITCH];",
        "threadgroup memory",
    ),
    ("high bits first", "word >> (e * BITS)", "word >> (32 - BITS - e * BITS)", "quantized"),
    ("scale of the wrong group", "group = column / GROUP", "group = 0", "quantized"),
    ("bias from the scales", "from.biases.data[at", "from.scales.data[at", "quantized"),
    ("bias left out", "* scale + bias)", "* scale)", "quantized"),
    (
        "values through the keys' scales",
        "v, v_strides, v_scales, v_scales_strides",
        "v, v_strides, k_scales, k_scales_strides",
        "quantized",
    ),
]
