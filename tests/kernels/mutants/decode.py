"""Faults put into the decode kernels, each of which the emulator or the reference must catch."""

import mlx.core as mx

from pippin.kernels.spec import AttentionSpec
from support.attention_cases import AttentionCase

_FEATURES = {"sinks": True, "slopes": True, "margin": 2}
_CAPPED = AttentionSpec(8, 2, 64, 0.125, window=45, softcap=2.0)
_GROUPED = AttentionSpec(8, 2, 64, 0.125)
_RAGGED = AttentionCase(_CAPPED, 2, 3, 80, starts=(0, 40), ends=(80, 71), **_FEATURES)
_SPLITS = AttentionCase(_GROUPED, 2, 4, 610, starts=(0, 600), ends=(603, 608), **_FEATURES)
_MEAN = AttentionCase(AttentionSpec(16, 1, 256, 0.0625, causal=False), 1, 4, 1200)

# (name, case, dtype, (bits, group) or None), for `decode_checks.check_decode` or, with bits,
# `check_quantized_decode`. Those without bits catch each of MUTANTS, the others each of
# QUANTIZED_MUTANTS.
PROBES = [
    ("ragged", _RAGGED, mx.float32, None),
    ("splits", _SPLITS, mx.float16, None),
    ("tiles", AttentionCase(AttentionSpec(16, 1, 64, 0.125), 1, 16, 20), mx.float32, None),
    (
        "empty rows",
        AttentionCase(_GROUPED, 2, 6, 30, starts=(0, 30), ends=(3, 30)),
        mx.float32,
        None,
    ),
    ("quantized, ragged", _RAGGED, mx.float32, (4, 32)),
    ("quantized, splits", _SPLITS, mx.float32, (8, 64)),
    ("quantized, long", _MEAN, mx.float32, (4, 128)),
]

# (name, text that stands once in decode.metal, decode_reduce.metal, decode_common.metal or
# common.metal, text put in its place, class of fault)
MUTANTS = [
    (
        "queries are read before they are staged",
        "sums[i] = 0.0f;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
        "sums[i] = 0.0f;",
        "missing barrier",
    ),
    (
        "queries are awaited by the simdgroup alone",
        "sums[i] = 0.0f;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
        "sums[i] = 0.0f;\n  simdgroup_barrier(mem_flags::mem_threadgroup);",
        "narrowed barrier scope",
    ),
    (
        "maxima are read before others wrote them",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  int first",
        "  int first",
        "missing barrier",
    ),
    (
        "sums are awaited with the wrong memory flag",
        "      threadgroup_barrier(mem_flags::mem_threadgroup);\n      for (int x = share",
        "      threadgroup_barrier(mem_flags::mem_device);\n      for (int x = share",
        "wrong memory flag",
    ),
    (
        "sums are overwritten while others read them",
        "      threadgroup_barrier(mem_flags::mem_threadgroup);\n    }\n  }\n}",
        "    }\n  }\n}",
        "missing barrier",
    ),
    (
        "a barrier for some simdgroups only",
        "        float2 sum = first[x * 32];\n",
        "        threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "        float2 sum = first[x * 32];\n",
        "divergent barrier",
    ),
    (
        "keys before the window are read",
        "int first = first_key(work.end - work.length, work.start, work.window);",
        "int first = work.start;",
        "dropped window skip",
    ),
    (
        "the window is one key short",
        "bool seen = j >= row.first_key &&",
        "bool seen = j > row.first_key &&",
        "off by one",
    ),
    ("a query sees the key after its own", "j < row.end_key;", "j <= row.end_key;", "off by one"),
    (
        "the last key of a split is left to nobody",
        "int last = work.end_key - 1;",
        "int last = work.end_key - 2;",
        "off by one",
    ),
    (
        "keys past the end are read",
        "const device T* k1 = k_head + min(at + column + 1, last) * k_strides[2];",
        "const device T* k1 = k_head + (at + column + 1) * k_strides[2];",
        "missing bound",
    ),
    (
        "a split takes keys of the next one",
        "work.end_key = min(work.end, work.first_key + share);",
        "work.end_key = min(work.end, work.first_key + share + 8);",
        "split overlap",
    ),
    (
        "splits are cut without rounding up",
        "int share = (blocks + work.splits - 1) / work.splits * 8;",
        "int share = blocks / work.splits * 8;",
        "keys left out",
    ),
    (
        "the batch goes by the stride of the heads",
        "return from + work.batch * strides[0] + work.kv * strides[1];",
        "return from + work.batch * strides[1] + work.kv * strides[1];",
        "wrong batch stride",
    ),
    (
        "a cache view is taken for a whole array",
        "return from + work.batch * strides[0] + work.kv * strides[1];",
        "return from + (work.batch * work.group + work.kv) * strides[1];",
        "wrong batch stride",
    ),
    (
        "every tile takes the first queries",
        "r = work.tile * ROWS + i / 64 / (D / 8) * 8 + fragment_row(lane);",
        "r = i / 64 / (D / 8) * 8 + fragment_row(lane);",
        "wrong tile",
    ),
    (
        "queries of a head are taken for heads of a query",
        "row.head = work.kv * work.group + clamped / work.length;",
        "row.head = work.kv * work.group + clamped % work.group;",
        "wrong head",
    ),
    (
        "ends are those of the first sequence",
        "ends[work.batch * ends_strides[1]]",
        "ends[0]",
        "wrong batch index",
    ),
    (
        "sums are not scaled when the maximum grows",
        "UNROLL for (int f = 0; f < F; f++) sums[b * F + f] *= kept;",
        "",
        "missing rescale",
    ),
    (
        "simdgroups are added without their factors",
        "factors[b] = fast::exp2(running[b].top - top);",
        "",
        "missing rescale",
    ),
    (
        "the maximum of a row comes from half its lanes",
        "  return max(x, simd_shuffle_xor(x, ushort(8)));",
        "  return x;",
        "incomplete reduction",
    ),
    (
        "the mass of a row comes from half its lanes",
        "  return x + simd_shuffle_xor(x, ushort(8));",
        "  return x;",
        "incomplete reduction",
    ),
    (
        "the softcap comes before the scale",
        "score_log2<true>(products[e], scale, softcap)",
        "score_log2<true>(products[e], 1.0f, softcap) * scale",
        "wrong scale order",
    ),
    ("ALiBi counts from the first key", "float(row.position - j)", "float(-j)", "wrong bias"),
    (
        "the only split forgets the sink",
        "    factor = add_sink(sink, running.top, running.mass);\n",
        "",
        "missing sink",
    ),
    (
        "every split counts the sink",
        "sum *= add_sink(sinks[head * sinks_strides[1]], top, mass);",
        "float sink = sinks[head * sinks_strides[1]];\n"
        "  for (int s = 0; s < splits; s++) sum *= add_sink(sink, top, mass);",
        "sink counted twice",
    ),
    (
        "masses of splits are added without their factors",
        "mass += factor * row_stats[2 * s + 1];",
        "mass += row_stats[2 * s + 1];",
        "missing rescale",
    ),
    (
        "the last split is not added",
        "for (int s = 0; s < splits; s++) {",
        "for (int s = 0; s < splits - 1; s++) {",
        "off by one",
    ),
    (
        "a row without keys divides by zero",
        "factor /= running.mass > 0.0f ? running.mass : 1.0f;",
        "factor /= running.mass;",
        "missing empty row",
    ),
    (
        "masked keys weigh 1 in a row without any other",
        "return score < NEG_LIMIT ? 0.0f : fast::exp2(score - top);",
        "return fast::exp2(score - top);",
        "missing empty row",
    ),
    (
        "rows of the padding are written",
        "row.slot = r < used ? slot : NO_ROW;",
        "row.slot = slot;",
        "write out of bounds",
    ),
    (
        "every lane of a row writes the log-sum-exp",
        "share == 0 && column == 0",
        "true",
        "race of writers",
    ),
    (
        "the memory for the exchange is one fragment short",
        "threadgroup float2 exchange[SIMDGROUPS * EXCHANGED * 32];",
        "threadgroup float2 exchange[SIMDGROUPS * EXCHANGED * 32 - 32];",
        "threadgroup memory too small",
    ),
    (
        "lanes skip every other chunk of a value",
        "(f * 8 + column / 2 * WV) * v_strides[3], v_strides[3], x);",
        "(f * 8 + column * WV) * v_strides[3], v_strides[3], x);",
        "wrong lane layout",
    ),
    (
        "a chunk of the values belongs to its neighbour",
        "f % (W / 2) * 2;",
        "f % (W / 2);",
        "wrong lane layout",
    ),
]

# The same for quantized_decode.metal and affine.metal
QUANTIZED_MUTANTS = [
    (
        "the high half of a word comes first",
        "int((word >> (j * BITS)) & MASK)",
        "int((word >> (32 - BITS - j * BITS)) & MASK)",
        "wrong bit order",
    ),
    (
        "codes are centred, their biases are not",
        "return biases + float(code_centre(BITS)) * scales;",
        "return biases;",
        "wrong zero point",
    ),
    ("codes are not centred", "return 1 << (bits - 1);", "return 0;", "lost precision"),
    (
        "weights lose bits before they meet codes",
        "scaled[b] = weights[b] * scales;",
        "scaled[b] = floor(weights[b] * scales * 65536.0f) / 65536.0f;",
        "lost precision",
    ),
    (
        "values take the scales of the keys",
        "group_pair(v_scale, v_scales_strides, j0, j1, g)",
        "group_pair(k_scale, k_scales_strides, j0, j1, g)",
        "wrong scale",
    ),
    (
        "every group takes the scale of the first",
        "float(entries[j0 * strides[2] + g * strides[3]])",
        "float(entries[j0 * strides[2]])",
        "wrong scale",
    ),
    (
        "biases meet the queries of another row",
        "biases * query_sums[b * GROUPS + g]",
        "biases * query_sums[g]",
        "wrong group sum",
    ),
    (
        "the sums of p·b are not scaled when the maximum grows",
        "bias_sums[b * GROUPS + g] *= kept;",
        "bias_sums[b * GROUPS + g] *= 1.0f;",
        "missing rescale",
    ),
    (
        "the words of a value are read by all lanes of the row",
        "value, f * 8 + column / 2 * WV, v_strides[3], x",
        "value, f * 8 + row % 4 * WV, v_strides[3], x",
        "wrong lane layout",
    ),
]
