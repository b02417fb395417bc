"""One function for attention; a table says who computes it."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Unpack

import mlx.core as mx

from . import decode, prefill
from .checks import Arrays, Quantized, check_attention, check_quantized
from .fallback import fallback_attention
from .quantized_decode import quantized_decode_attention
from .quantized_fallback import quantized_fallback
from .quantized_prefill import quantized_prefill_attention
from .spec import AttentionSpec

Name = Literal["mlx", "decode", "prefill", "fallback"]

VARIABLE = "PIPPIN_ATTENTION"  # for debugging: one of MODES
MODES = ("auto", "mlx", "kernels")
_MOST = 1 << 30  # queries; more than any call has


@dataclass(frozen=True)
class Choice:
    """Who computes an attention call: MLX's op, our decode or prefill kernel, or MLX's operations
    one after another (fallback)."""

    name: Name
    reason: str


@dataclass(frozen=True)
class Rule:
    """A row of TABLE. It covers a call when all that it names holds."""

    name: Name
    reason: str
    metal: bool = False  # a device with Metal is needed
    quantized: bool | None = None  # the cache is packed; None: either
    plain: bool = False  # only calls that MLX's op can express, see `is_plain`
    lengths: tuple[int, int] = (0, _MOST)  # L, from and to
    min_group: int = 1  # G = H/K, at least
    min_rows: int = 0  # G·L, at least


_SHORT, _LONG = (1, decode.MAX_QUERIES), (decode.MAX_QUERIES + 1, _MOST)

# The first row that covers a call, and whose kernel takes its type and head_dim, computes it.
# What MLX's op does with which lengths and groups is that of MLX 0.32.
TABLE = (
    Rule(
        "decode",
        "with 9 to 16 queries MLX's op reads the keys anew for each query head of a group",
        metal=True,
        quantized=False,
        plain=True,
        lengths=(9, decode.MAX_QUERIES),
        min_group=2,
    ),
    Rule(
        "decode",
        "MLX's op is unfused for more than 32 query rows a key/value head",
        metal=True,
        quantized=False,
        plain=True,
        lengths=(1, 8),
        min_rows=33,
    ),
    Rule(
        "mlx",
        "MLX's own op serves plain causal and dense attention",
        quantized=False,
        plain=True,
    ),
    Rule(
        "decode",
        "reads the keys that are seen once for all query heads of a group, without a mask",
        metal=True,
        quantized=False,
        lengths=_SHORT,
    ),
    Rule(
        "prefill",
        "reads the keys that are seen once for each tile of 32 queries, without a mask",
        metal=True,
        quantized=False,
        lengths=_LONG,
    ),
    Rule(
        "decode",
        "reads the packed words once for all query heads of a group",
        metal=True,
        quantized=True,
        lengths=_SHORT,
    ),
    Rule(
        "prefill",
        "dequantizes a block of keys at a time, into threadgroup memory alone",
        metal=True,
        quantized=True,
        lengths=_LONG,
    ),
    Rule("fallback", "MLX's operations, with the semantics of the kernels"),
)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    spec: AttentionSpec,
    *,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """Attention as `AttentionSpec` and `reference.attention_and_lse` define it.

    q [B, H, L, D]; k, v [B, K, S, D]; sinks, slopes [H] float32; starts, ends [B] int32. Returns
    [B, H, L, D] in q's dtype, with `lse` also the log-sum-exp, float32 [B, H, L].
    Raises ValueError when the shapes or types disagree with each other or with `spec`.
    """
    check_attention(q, k, v, spec, **arrays)
    bare = not lse and all(array is None for array in arrays.values())
    choice = choose(spec, q.dtype, q.shape[2], k.shape[2], bare=bare)
    if choice.name == "mlx":
        mask = "causal" if spec.causal and q.shape[2] > 1 else None
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=spec.scale, mask=mask)
    return ATTENTION[choice.name](q, k, v, spec, **arrays, lse=lse)


def quantized_attention(
    q: mx.array,
    k: Quantized,
    v: Quantized,
    spec: AttentionSpec,
    *,
    bits: int,
    group_size: int,
    lse: bool = False,
    **arrays: Unpack[Arrays],
) -> mx.array | tuple[mx.array, mx.array]:
    """`attention` over keys and values that `mx.quantize` packed along D (affine, 4 or 8 bits).

    k, v: words uint32 [B, K, S, D·bits/32], scales and biases [B, K, S, D/group_size]. They are
    never dequantized as a whole. Raises ValueError as `attention` does, and for a layout that
    `bits` and `group_size` do not describe.
    """
    check_quantized(q, k, v, spec, bits=bits, group_size=group_size, **arrays)
    choice = choose(spec, q.dtype, q.shape[2], k[0].shape[2], bare=False, quantized=True)
    layout = {"bits": bits, "group_size": group_size}
    return QUANTIZED[choice.name](q, k, v, spec, **layout, **arrays, lse=lse)


ATTENTION: dict[str, Callable[..., mx.array | tuple[mx.array, mx.array]]] = {
    "decode": decode.decode_attention,
    "prefill": prefill.prefill_attention,
    "fallback": fallback_attention,
}
QUANTIZED: dict[str, Callable[..., mx.array | tuple[mx.array, mx.array]]] = {
    "decode": quantized_decode_attention,
    "prefill": quantized_prefill_attention,
    "fallback": quantized_fallback,
}
_KERNELS = {"decode": decode, "prefill": prefill}  # modules with an `unsupported`


def choose(
    spec: AttentionSpec,
    dtype: mx.Dtype,
    length: int,
    total: int,
    *,
    bare: bool = True,
    quantized: bool = False,
    metal: bool | None = None,
    mode: str | None = None,
) -> Choice:
    """Who computes L = `length` queries on S = `total` keys, and why.

    `bare`: the call has none of sinks, slopes, starts, ends and lse. `metal` and `mode` are those
    of this process when they are None. Raises ValueError for a mode that is not among MODES.
    """
    return _choose(
        spec,
        dtype,
        min(length, _LONG[0]),  # calls that the table does not tell apart share an entry
        min(total, 1),
        bare and is_plain(spec, length, total),
        quantized,
        has_metal() if metal is None else metal,
        attention_mode() if mode is None else mode,
    )


def has_metal() -> bool:
    """Whether the default device runs Metal kernels."""
    return mx.metal.is_available() and mx.default_device().type == mx.gpu


def attention_mode() -> str:
    """What PIPPIN_ATTENTION asks for. Raises ValueError for a value that is none of MODES."""
    mode = os.environ.get(VARIABLE) or MODES[0]
    if mode not in MODES:
        raise ValueError(f"{VARIABLE} is {mode!r}; it takes {', '.join(MODES)}")
    return mode


def uses_kernels(metal: bool, mode: str) -> bool:
    """Whether our kernels may be launched, `metal` and `mode` given."""
    return mode == "kernels" or (metal and mode == "auto")


def is_plain(spec: AttentionSpec, length: int, total: int) -> bool:
    """Whether MLX's op computes `spec` without a mask array; rows that see no key it makes NaN."""
    unlimited = spec.window is None or spec.window >= total
    seen = total > 0 and (not spec.causal or length <= total)
    return spec.softcap is None and unlimited and seen


@functools.cache
def _choose(
    spec: AttentionSpec,
    dtype: mx.Dtype,
    length: int,
    total: int,
    plain: bool,
    quantized: bool,
    metal: bool,
    mode: str,
) -> Choice:
    refusal = f"{VARIABLE}=mlx" if mode == "mlx" else "" if metal else "no Metal device"
    usable = uses_kernels(metal, mode)
    for rule in TABLE:
        forced_away = rule.name == "mlx" and mode == "kernels"
        if forced_away or (rule.metal and not usable):
            continue
        if not _covers(rule, spec, length, plain, quantized):
            continue
        kernel = _KERNELS.get(rule.name)
        refused = kernel and kernel.unsupported(spec, dtype, spec.head_dim, length, total)
        if not refused:
            return Choice(rule.name, _reason(rule, mode, refusal))
        refusal = refused
    raise AssertionError("the last row of TABLE covers everything")


def _reason(rule: Rule, mode: str, refusal: str) -> str:
    """Why `rule` was taken; `refusal`: why none of the kernels was, if there was one."""
    if rule.metal:
        return f"{VARIABLE}=kernels" if mode == "kernels" else rule.reason
    return f"{refusal}: {rule.reason}" if refusal and rule.name == "fallback" else rule.reason


def _covers(rule: Rule, spec: AttentionSpec, length: int, plain: bool, quantized: bool) -> bool:
    group = spec.heads // spec.kv_heads
    return (
        rule.quantized in (None, quantized)
        and (plain or not rule.plain)
        and rule.lengths[0] <= length <= rule.lengths[1]
        and group >= rule.min_group
        and group * length >= rule.min_rows
    )
