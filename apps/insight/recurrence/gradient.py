"""How much of a loss's gradient reaches tokens that were read long before."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ....mlx_model.caches.full import KVCache
from ....mlx_model.decoder import Decoder
from ....mlx_model.mlx_ops import MlxOps
from .networks import LstmModel

Logits = Callable[[mx.array], mx.array]  # embeddings [1, L, E] → the last token's logits [V]


def gradient_norms(model: LstmModel | Decoder, ids: Sequence[int], target: int) -> np.ndarray:
    """|dloss/dembedding| of each token, float64 [L].

    The loss is that of `target` as the token after `ids`: −log softmax(logits)[target]. An LSTM is
    computed in float64 for its range, as its gradient would soon be too small for float32; `model`
    is turned into that. On the CPU, which alone has it.
    """
    with mx.stream(mx.cpu):
        logits = _lstm(model) if isinstance(model, LstmModel) else _decoder(model)
        x = model_table(model)(mx.array([list(ids)]))

        def loss(x: mx.array) -> mx.array:
            scores = logits(x)
            return mx.logsumexp(scores) - scores[target]

        gradient = np.array(mx.grad(loss)(x)[0]).astype(np.float64)
    # Squares of what float64 can just hold would be 0.
    largest = np.abs(gradient).max(axis=1, keepdims=True)
    scaled = np.divide(gradient, largest, out=np.zeros_like(gradient), where=largest > 0)
    return largest[:, 0] * np.linalg.norm(scaled, axis=1)


def share_of_first(model: LstmModel | Decoder, ids: Sequence[int], target: int) -> float:
    """The first token's gradient over the last one's."""
    norms = gradient_norms(model, ids, target)
    return float(norms[0] / norms[-1])


def model_table(model: LstmModel | Decoder) -> nn.Embedding:
    """The table of embeddings [V, E]."""
    return model.embed_tokens if isinstance(model, LstmModel) else model.model.embed_tokens


class _Embedded(MlxOps):
    """The operations after the embedding, which is given."""

    def __init__(self, x: mx.array):
        super().__init__(last=1)
        self._x = x

    def embed(self, table: nn.Module, ids: mx.array) -> mx.array:
        return self._x


def _decoder(model: Decoder) -> Logits:
    ids = mx.zeros((1, 1), mx.int32)  # not looked at

    def logits(x: mx.array) -> mx.array:
        caches = [KVCache() for _ in range(model.config.layers)]
        return model(_Embedded(x), ids, caches)[0, -1]

    return logits


def _lstm(model: LstmModel) -> Logits:
    model.set_dtype(mx.float64)
    return lambda x: model.from_embeddings(x)[0][0, -1]
