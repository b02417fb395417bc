"""Texts to vectors, whoever computes the encoder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from .errors import InputError
from .recipe import Recipe

Array = Any  # of the embedder's `xp`
_BATCH = 32  # texts that are computed at once
_SPREAD = 8  # tokens by which the lengths in a batch may always differ


class Embedder(ABC):
    """An encoder, its tokenizer and its recipe."""

    backend: str  # "mlx" or "onnx"
    xp: ModuleType  # numpy or mlx.core

    def __init__(
        self, tokenizer_json: str, recipe: Recipe, *, vocab_size: int, context: int, dimension: int
    ):
        """`context`: the encoder's longest text in tokens; `dimension`: E of a vector of it.

        Raises InputError for a tokenizer that is missing, damaged or larger than the vocabulary.
        """
        if not tokenizer_json:
            raise InputError(
                "the model has no tokenizer.json; save it with transformers' fast tokenizer"
            )
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises Exception itself
            reason = " ".join(str(error).split())
            raise InputError(f"the model's tokenizer.json cannot be read: {reason:.300}") from error
        last = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if last >= vocab_size:
            raise InputError(f"tokenizer.json has id {last}, the model has {vocab_size} tokens")
        self.recipe = recipe
        self.dimension = dimension * len(recipe.pooling)  # of a vector
        self.max_length = min(recipe.max_length or context, context)  # tokens of a text
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_length, direction=recipe.cut_side)

    @abstractmethod
    def hidden(self, ids: np.ndarray, mask: np.ndarray) -> Array:
        """ids, mask [B, L] int64 → the tokens' vectors [B, L, E]; padding is on the right."""

    def embed(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """One vector a text, float32 [B, E], in the texts' order; `progress(done, total)` counts.

        A text longer than `max_length` tokens is cut. A text's vector does not depend on the others
        beyond float32 rounding. Raises InputError for what is no valid Unicode.
        """
        tokens = [self.tokens(text) for text in texts]
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        done = 0
        for chosen in _batches([len(text) for text in tokens]):
            vectors[chosen] = self._batch([tokens[index] for index in chosen])
            done += len(chosen)
            if progress is not None:
                progress(done, len(tokens))
        return vectors

    def similarity(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Vectors [A, E] against [B, E] → [A, B], by the model's own measure."""
        return self.recipe.compare(left, right)

    def tokens(self, text: str) -> list[int]:
        """The token ids of a text as the encoder gets them."""
        try:
            return self._tokenizer.encode(self.recipe.prepare(text)).ids
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"the tokenizer cannot encode the text: {error}") from error

    def _batch(self, tokens: list[list[int]]) -> np.ndarray:
        length = max(1, *map(len, tokens))
        ids = np.zeros((len(tokens), length), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        vectors = self.recipe.pool(self.xp, self.hidden(ids, mask), self.xp.array(mask))
        return np.array(vectors, np.float32)


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Indices of texts that are computed together, none more than about half padding."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    while order:
        limit = 2 * lengths[order[0]] + _SPREAD
        count = sum(lengths[index] <= limit for index in order[:_BATCH])
        yield order[:count]
        order = order[count:]
