"""Keys and values kept in plain lists: what a KV cache is compared with."""

from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from pippin.kernels.reference import attention_reference
from pippin.kernels.spec import AttentionSpec
from pippin.mlx_model.caches.storage import PLAIN, Affine

SPEC = AttentionSpec(heads=4, kv_heads=2, head_dim=32, scale=32**-0.5)
STORAGES = {
    "plain": PLAIN,
    "4 bits": Affine(bits=4, group_size=32),
    "8 bits": Affine(bits=8, group_size=32),
}


@dataclass
class History:
    """The tokens that a cache should know; `attend` is what it should answer."""

    spec: AttentionSpec = SPEC
    storage: object = PLAIN
    keys: list[np.ndarray] = field(default_factory=list)  # [K, D] each
    values: list[np.ndarray] = field(default_factory=list)

    def append(self, k: mx.array, v: mx.array) -> None:
        """Append k, v [1, K, L, D] as `storage` keeps them."""
        for tokens, x in ((self.keys, k), (self.values, v)):
            if self.storage is not PLAIN:
                layout = {"bits": self.storage.bits, "group_size": self.storage.group_size}
                x = mx.dequantize(*mx.quantize(x, **layout), **layout)
            tokens += list(np.array(x[0], np.float64).swapaxes(0, 1))

    def attend(self, q: mx.array) -> np.ndarray:
        """float64 [1, H, L, D] for q [1, H, L, D] of the last L tokens."""
        k, v = (np.stack(x, axis=1)[None] for x in (self.keys, self.values))
        return attention_reference(np.array(q, np.float64), k, v, self.spec)

    def rollback(self, length: int) -> None:
        del self.keys[length:], self.values[length:]

    def fork(self) -> "History":
        return replace(self, keys=list(self.keys), values=list(self.values))


def random_tokens(
    seed: int, length: int, batch: int = 1, spec: AttentionSpec = SPEC
) -> tuple[mx.array, mx.array, mx.array]:
    """q [B, H, L, D], k and v [B, K, L, D], standard normal."""
    rng = np.random.default_rng(seed)
    heads = (spec.heads, spec.kv_heads, spec.kv_heads)
    return tuple(
        mx.array(rng.standard_normal((batch, h, length, spec.head_dim)).astype(np.float32))
        for h in heads
    )


def assert_same(out: mx.array, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(out), wanted, atol=3e-6)
