"""Attention calls as models make them: what doctor explains and the benchmark times."""

from dataclasses import dataclass

import mlx.core as mx

from ..kernels.dispatch import Choice, choose
from ..kernels.spec import AttentionSpec

LONG = 4096  # keys


@dataclass(frozen=True)
class AttentionCall:
    """One attention call, without its numbers."""

    name: str
    spec: AttentionSpec
    length: int  # L
    total: int = LONG  # S
    batch: int = 1  # B
    dtype: mx.Dtype = mx.float16
    sinks: bool = False
    slopes: bool = False
    ragged: bool = False
    lse: bool = False
    bits: int | None = None  # of a packed cache
    group_size: int = 64  # of a packed cache

    def choice(self, metal: bool | None = None, mode: str | None = None) -> Choice:
        """Who computes it; see `dispatch.choose`."""
        return choose(
            self.spec,
            self.dtype,
            self.length,
            self.total,
            bare=not (self.sinks or self.slopes or self.ragged or self.lse),
            quantized=self.bits is not None,
            metal=metal,
            mode=mode,
        )


def _spec(head_dim: int = 128, **features: object) -> AttentionSpec:
    return AttentionSpec(32, 8, head_dim, head_dim**-0.5, **features)


_WIDE = AttentionSpec(16, 16, 64, 0.125)

CALLS = (
    AttentionCall("prefill, causal", _spec(), 2048),
    AttentionCall("prefill, window 1024", _spec(window=1024), 2048),
    AttentionCall("prefill, softcap 50", _spec(softcap=50.0), 2048),
    AttentionCall("prefill, ALiBi", _WIDE, 2048, slopes=True),
    AttentionCall("prefill, sinks and window 128", _spec(64, window=128), 2048, sinks=True),
    AttentionCall("prefill, ragged batch of 4", _spec(), 512, 1024, 4, ragged=True),
    AttentionCall("prefill, with log-sum-exp", _spec(), 2048, lse=True),
    AttentionCall("prefill, head_dim 256, window 1024", _spec(256, window=1024), 2048),
    AttentionCall(
        "prefill, head_dim 256 in float32", _spec(256, window=1024), 512, dtype=mx.float32
    ),
    AttentionCall("prefill, 4-bit cache", _spec(), 512, bits=4),
    AttentionCall("prefill, 8-bit cache", _spec(), 512, bits=8),
    AttentionCall("decode, causal", _spec(), 1, 16384),
    AttentionCall("decode, 12 queries", _spec(), 12, 16384),
    AttentionCall(
        "decode, 8 queries, 8 heads a group", AttentionSpec(32, 4, 128, 0.0884), 8, 16384
    ),
    AttentionCall("decode, window 1024", _spec(window=1024), 1, 16384),
    AttentionCall("decode, softcap 50", _spec(softcap=50.0), 1, 16384),
    AttentionCall("decode, ALiBi", _WIDE, 1, 16384, slopes=True),
    AttentionCall("decode, sinks and window 128", _spec(64, window=128), 1, 16384, sinks=True),
    AttentionCall("decode, ragged batch of 8", _spec(), 1, 4096, 8, ragged=True),
    AttentionCall("decode, 4-bit cache", _spec(), 1, 16384, bits=4),
    AttentionCall("decode, 8-bit cache", _spec(), 1, 16384, bits=8),
    AttentionCall("decode, 4-bit cache, window 1024", _spec(window=1024), 1, 16384, bits=4),
    AttentionCall("head_dim 72, window 128", _spec(72, window=128), 1),
)
