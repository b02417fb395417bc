"""MLX's own attention kernels, from its shipped headers, run right through the emulator."""

import numpy as np
import pytest

from emulator import SKIP_REASON, find_clang
from emulator.mlx_headers import mlx_kernel, run

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)

SIZES = {"float": (np.float32, 2e-6), "half": (np.float16, 2e-3)}


def inputs(heads, kv_heads, length, keys, dim, dtype, batch=1):
    rng = np.random.default_rng(length * keys)
    shapes = [(batch, heads, length, dim)] + [(batch, kv_heads, keys, dim)] * 2
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def attention(q, k, v, causal=False, mask=None, sinks=None):
    """In float64, the mask aligned bottom right."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    length, keys = scores.shape[-2:]
    if causal:
        scores = np.where(np.tri(length, keys, keys - length, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    extra = np.zeros(()) if sinks is None else np.exp(sinks.astype(np.float64))[None, :, None, None]
    weights = np.exp(scores)
    return weights / (weights.sum(-1, keepdims=True) + extra) @ v


def close(out, expected, tolerance):
    scale = np.abs(expected).max(-1, keepdims=True)
    assert (np.abs(out - expected) <= tolerance * np.maximum(scale, 1e-30)).all()


def vector_arguments(q, k, v, out):
    keys, dim = k.shape[2:]
    return {
        "queries": q,
        "keys": k,
        "values": v,
        "out": out,
        "gqa_factor": np.int32(q.shape[1] // k.shape[1]),
        "N": np.int32(keys),
        "k_head_stride": np.uint64(keys * dim),
        "k_seq_stride": np.uint64(dim),
        "v_head_stride": np.uint64(keys * dim),
        "v_seq_stride": np.uint64(dim),
        "scale": np.float32(dim**-0.5),
    }


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "length", "keys", "dim"),
    [(2, 1, 1, 1, 64), (4, 2, 1, 77, 64), (3, 3, 4, 40, 96), (4, 1, 2, 200, 128)],
)
def test_vector_attention(kind, heads, kv_heads, length, keys, dim):
    dtype, tolerance = SIZES[kind]
    q, k, v = inputs(heads, kv_heads, length, keys, dim, dtype)
    out = np.zeros_like(q)
    launch = run(
        mlx_kernel("sdpa_vector.h", f"sdpa_vector<{kind}, {dim}, {dim}>", (("do_causal", True),)),
        vector_arguments(q, k, v, out),
        outputs=("out",),
        groups=(heads, length, 1),
        threadgroup=(1024, 1, 1),
    )
    close(out, attention(q, k, v, causal=True), tolerance)
    if length == 1:  # every key once per query head
        assert launch.traffic["keys"].read == heads * keys * dim * q.itemsize


def test_vector_attention_with_mask_and_sinks():
    q, k, v = inputs(4, 2, 3, 50, 64, np.float32)
    mask = np.random.default_rng(0).random((1, 4, 3, 50)) < 0.5
    mask[..., 0] = True
    sinks = np.array([0.5, -1, 2, 0], np.float32)
    out = np.zeros_like(q)
    constants = (("has_mask", True), ("bool_mask", True), ("has_sinks", True))
    run(
        mlx_kernel("sdpa_vector.h", "sdpa_vector<float, 64, 64>", constants),
        vector_arguments(q, k, v, out)
        | {
            "bmask": mask,
            "mask_kv_seq_stride": np.int32(1),
            "mask_q_seq_stride": np.int32(50),
            "mask_head_stride": np.int32(150),
            "sinks": sinks,
            "num_q_heads": np.int32(4),
        },
        outputs=("out",),
        groups=(4, 3, 1),
        threadgroup=(1024, 1, 1),
    )
    close(out, attention(q, k, v, mask=mask, sinks=sinks), 2e-6)


@pytest.mark.parametrize(("length", "keys"), [(1, 300), (3, 1000), (1, 20)])
def test_two_pass_vector_attention(length, keys):
    heads, kv_heads, dim, blocks = 6, 2, 64, 32
    q, k, v = inputs(heads, kv_heads, length, keys, dim, np.float32)
    partial = np.zeros((heads, length, blocks, dim), np.float32)
    sums, maxs = np.zeros((2, heads, length, blocks), np.float32)
    out = np.zeros_like(q)
    constants = (("do_causal", True), ("blocks", blocks))
    run(
        mlx_kernel("sdpa_vector.h", f"sdpa_vector_2pass_1<float, {dim}, {dim}>", constants),
        vector_arguments(q, k, v, partial) | {"sums": sums, "maxs": maxs},
        outputs=("out", "sums", "maxs"),
        groups=(kv_heads, 1, blocks),
        threadgroup=(32, heads // kv_heads, length),
    )
    run(
        mlx_kernel("sdpa_vector.h", f"sdpa_vector_2pass_2<float, {dim}>"),
        {
            "partials": partial,
            "sums": sums,
            "maxs": maxs,
            "out": out,
            "blocks": np.int32(blocks),
        },
        outputs=("out",),
        groups=(heads, length, 1),
        threadgroup=(1024, 1, 1),
    )
    close(out, attention(q, k, v, causal=True), 2e-6)


def test_two_pass_vector_attention_that_shares_keys_in_the_group():
    heads, kv_heads, dim, blocks, keys, shared = 8, 1, 64, 32, 333, 4
    q, k, v = inputs(heads, kv_heads, 1, keys, dim, np.float32)
    partial = np.zeros((heads, blocks, dim), np.float32)
    sums, maxs = np.zeros((2, heads, blocks), np.float32)
    launch = run(
        mlx_kernel(
            "sdpa_vector.h", f"sdpa_vector_2pass_1_gqa<float, {dim}, {dim}, {heads}, {shared}>"
        ),
        vector_arguments(q, k, v, partial) | {"sums": sums, "maxs": maxs},
        outputs=("out", "sums", "maxs"),
        groups=(kv_heads, 1, blocks),
        threadgroup=(32, heads, 1),
    )
    # The kernel's comment promises that each K byte is read G / HPT times.
    assert launch.traffic["keys"].read == k.nbytes * heads // shared
    top = maxs.max(-1, keepdims=True)
    weights = np.exp(maxs.astype(np.float64) - top)[..., None]
    total = (weights[..., 0] * sums).sum(-1)
    out = (weights * partial).sum(1) / total[:, None]
    close(out[None, :, None], attention(q, k, v), 2e-6)


PARAMS = np.dtype(
    [(name, "i4") for name in ("B", "H", "D", "qL", "kL", "gqa_factor")]
    + [("scale", "f4")]
    + [(name, "i4") for name in ("NQ", "NK", "NQ_aligned", "NK_aligned")]
    + [(name, "i4") for name in ("qL_rem", "kL_rem", "qL_off")]
    + [(f"{name}_strides", "i8", 3) for name in "QKVO"],
    align=True,
)


def steel_params(q, k, block_q, block_k):
    batch, heads, length, dim = q.shape
    keys = k.shape[2]
    params = np.zeros((), PARAMS)
    strides_q = [heads * length * dim, length * dim, dim]
    strides_k = [k.shape[1] * keys * dim, keys * dim, dim]
    values = {
        "B": batch,
        "H": heads,
        "D": dim,
        "qL": length,
        "kL": keys,
        "gqa_factor": heads // k.shape[1],
        "scale": dim**-0.5,
        "NQ": -(-length // block_q),
        "NK": -(-keys // block_k),
        "NQ_aligned": length // block_q,
        "NK_aligned": keys // block_k,
        "qL_rem": length % block_q,
        "kL_rem": keys % block_k,
        "qL_off": keys - length,
        "Q_strides": strides_q,
        "K_strides": strides_k,
        "V_strides": strides_k,
        "O_strides": strides_q,
    }
    for name, value in values.items():
        params[name] = value
    return (
        params.view(np.uint8).reshape(-1) if params.ndim else np.frombuffer(params.tobytes(), "u1")
    )


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize(
    ("length", "keys", "dim", "block_k"),
    [(32, 64, 64, 32), (45, 45, 64, 32), (33, 100, 80, 32), (70, 90, 128, 16)],
)
def test_steel_attention(kind, length, keys, dim, block_k):
    dtype, tolerance = SIZES[kind]
    q, k, v = inputs(4, 2, length, keys, dim, dtype, batch=2)
    out = np.zeros_like(q)
    constants = (
        ("align_Q", length % 32 == 0),
        ("align_K", keys % block_k == 0),
        ("do_causal", True),
    )
    call = f"attention<{kind}, 32, {block_k}, {dim}, {dim}, 4, 1, float, float>"
    run(
        mlx_kernel("steel/attn/kernels/steel_attention.h", call, constants),
        {"Q": q, "K": k, "V": v, "O": out, "params": steel_params(q, k, 32, block_k)},
        outputs=("O",),
        groups=(-(-length // 32), 4, 2),
        threadgroup=(32, 4, 1),
    )
    close(out, attention(q, k, v, causal=True), tolerance)
