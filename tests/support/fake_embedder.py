"""An embedder without a model: words are hashed to directions, a text is the sum of its words."""

import hashlib
from collections.abc import Sequence

import numpy as np

DIMENSION = 32


class FakeEmbedder:
    """What an index needs of `Embedder`; `texts` keeps all that it was given, `fail_after` texts
    it raises KeyboardInterrupt, as a user does."""

    def __init__(self, seed: str = "", fail_after: int | None = None) -> None:
        self.texts: list[str] = []
        self._seed = seed
        self._fail_after = fail_after

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [B, E], not of length 1."""
        if self._fail_after is not None and len(self.texts) >= self._fail_after:
            raise KeyboardInterrupt
        self.texts += texts
        return np.stack([sum(map(self._word, text.lower().split() or [""])) for text in texts])

    def similarity(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Cosines [A, B] of [A, E] and [B, E]."""
        left, right = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (left, right))
        return left @ right.T

    def _word(self, word: str) -> np.ndarray:
        digest = hashlib.sha256((self._seed + word).encode("utf-8", "replace")).digest()
        return np.random.default_rng(int.from_bytes(digest[:8])).standard_normal(
            DIMENSION, np.float32
        )
