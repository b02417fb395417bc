"""What is refused before any launch: inputs that no kernel can compute."""

from typing import TypedDict, Unpack

import mlx.core as mx

from .spec import AttentionSpec


class Arrays(TypedDict, total=False):
    """What attention may be given beside q, k and v; None is the same as absent."""

    sinks: mx.array | None  # float32 [H]
    slopes: mx.array | None  # float32 [H]
    starts: mx.array | None  # int32 [B]
    ends: mx.array | None  # int32 [B]


Quantized = tuple[mx.array, mx.array, mx.array]  # words, scales, biases, as `mx.quantize` has them

FLOATS = (mx.float32, mx.float16, mx.bfloat16)


def check_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    **arrays: Unpack[Arrays],
) -> None:
    """Raise ValueError when q [B, H, L, D], k, v [B, K, S, D] or the arrays do not fit `spec`."""
    check_spec(spec)
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape:
        raise ValueError(f"attention takes 4-d q, k, v; found q{q.shape}, k{k.shape}, v{v.shape}")
    wanted = (q.shape[0], spec.kv_heads, k.shape[2], spec.head_dim)
    if q.shape[1] != spec.heads or q.shape[3] != spec.head_dim or k.shape != wanted:
        raise ValueError(f"attention of {spec} does not fit q{q.shape}, k{k.shape}")
    if q.dtype not in FLOATS or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"attention takes q, k, v of one float type; found {q.dtype}, {k.dtype}, {v.dtype}"
        )
    check_lengths(q.shape[2], k.shape[2])
    check_arrays(spec, q.shape[0], **arrays)


def check_quantized(
    q: mx.array,
    k: tuple[mx.array, mx.array, mx.array],
    v: tuple[mx.array, mx.array, mx.array],
    spec: AttentionSpec,
    *,
    bits: int,
    group_size: int,
    **arrays: Unpack[Arrays],
) -> None:
    """Raise ValueError when q [B, H, L, D] or the packed k, v do not fit `spec` and the layout."""
    check_spec(spec)
    check_layout(spec.head_dim, bits, group_size)
    if q.ndim != 4 or q.shape[1] != spec.heads or q.shape[3] != spec.head_dim:
        raise ValueError(f"attention of {spec} does not fit q{q.shape}")
    if q.dtype not in FLOATS:
        raise ValueError(f"attention takes q of a float type; found {q.dtype}")
    tokens = (q.shape[0], spec.kv_heads, k[0].shape[2] if k[0].ndim == 4 else 0)
    words = (*tokens, spec.head_dim * bits // 32)
    groups = (*tokens, spec.head_dim // group_size)
    for name, parts in (("k", k), ("v", v)):
        found = [part.shape for part in parts]
        if found != [words, groups, groups] or parts[0].dtype != mx.uint32:
            raise ValueError(
                f"quantized {name} is {parts[0].dtype}{found}; {bits} bits in groups of "
                f"{group_size} need uint32 {[words, groups, groups]}"
            )
    check_lengths(q.shape[2], tokens[2])
    check_arrays(spec, q.shape[0], **arrays)


def check_layout(head_dim: int, bits: int, group_size: int) -> None:
    """Raise ValueError unless keys and values of `head_dim` can be packed so."""
    if bits not in (4, 8) or group_size not in (32, 64, 128):
        raise ValueError(
            f"keys and values are quantized to 4 or 8 bits in groups of 32, 64 or 128; "
            f"found {bits} bits, group {group_size}"
        )
    if head_dim % group_size:
        raise ValueError(
            f"a head of {head_dim} values does not divide into groups of {group_size}; "
            "choose a smaller group or an unquantized cache"
        )


def check_lengths(length: int, total: int) -> None:
    """Raise ValueError when there is no query or no key at all."""
    if not length or not total:
        raise ValueError(f"{length} queries and {total} keys leave nothing to compute")


def check_spec(spec: AttentionSpec) -> None:
    """Raise ValueError for a spec that contradicts itself."""
    if spec.heads % spec.kv_heads:
        raise ValueError(f"{spec.heads} query heads are no multiple of {spec.kv_heads} kv heads")
    if spec.window is not None and (spec.window < 1 or not spec.causal):
        raise ValueError(f"a window needs causal attention and at least 1 key; found {spec}")
    if spec.softcap is not None and not spec.softcap > 0:
        raise ValueError(f"softcap is {spec.softcap}; it must be above 0")


def check_arrays(spec: AttentionSpec, batch: int, **arrays: Unpack[Arrays]) -> None:
    """Raise ValueError for shapes and types that are not those of `Arrays`."""
    wanted = {
        "sinks": (spec.heads, mx.float32),
        "slopes": (spec.heads, mx.float32),
        "starts": (batch, mx.int32),
        "ends": (batch, mx.int32),
    }
    for name, array in arrays.items():
        if name not in wanted:
            raise TypeError(f"attention takes no {name!r}")
        length, dtype = wanted[name]
        if array is not None and (array.shape != (length,) or array.dtype != dtype):
            raise ValueError(
                f"{name} is {array.dtype}{list(array.shape)}; expected {dtype}[{length}]"
            )
