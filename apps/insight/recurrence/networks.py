"""Two language models of equal size, untrained: an LSTM and a decoder.

Shapes: B batch · L tokens · E embedding size · V vocabulary · h hidden units of the LSTM.
"""

from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ....mlx_model.config import BlockConfig, ModelConfig, Norm
from ....mlx_model.decoder import Decoder
from ....mlx_model.positions import RopeConfig
from .report import FORGET_CHRONO, FORGET_ONE, FORGET_ZERO, Network

VOCAB_SIZE = 256  # V, bytes
EMBEDDING = 128  # E, of both
HIDDEN = 240  # h
LSTM_LAYERS, DECODER_LAYERS = 2, 4
HEADS, HEAD_DIM, FEED_FORWARD = 4, 32, 380  # H = K, D, F
CONTEXT = 4096  # tokens that the decoder's rotation tables cover
_LONGEST_MEMORY = 512  # tokens; T of the chrono initialisation

State = list[tuple[mx.array, mx.array]]  # hidden and cell state [B, h] of each layer


class LstmModel(nn.Module):
    """Embedding, layers of LSTM (Hochreiter and Schmidhuber 1997) with a forget gate, unembedding.

    Weights are MLX's own initialisation, U(±1/√h); the forget gates' biases are as `forget` says:
    0, where gates stand near ½; 1 (Jozefowicz, Zaremba, Sutskever, ICML 2015); or chrono
    (arXiv:1804.11188): log of U(1, 511), input gates the negative, for memories up to 512 tokens.
    """

    def __init__(self, forget: str = FORGET_ONE):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, EMBEDDING)
        widths = [EMBEDDING, *[HIDDEN] * LSTM_LAYERS]
        self.layers = [nn.LSTM(*pair) for pair in pairwise(widths)]
        self.lm_head = nn.Linear(HIDDEN, VOCAB_SIZE, bias=False)
        for layer in self.layers:
            layer.bias = _with_forget_bias(layer.bias, forget)

    def __call__(self, ids: mx.array, state: State | None = None) -> tuple[mx.array, State]:
        """ids [B, L] after `state` (None: zeros) → logits [B, L, V] and the state after them."""
        return self.from_embeddings(self.embed_tokens(ids), state)

    def from_embeddings(self, x: mx.array, state: State | None = None) -> tuple[mx.array, State]:
        """As `__call__`, of embeddings [B, L, E]."""
        after = []
        for layer, before in zip(self.layers, state or [(None, None)] * LSTM_LAYERS, strict=True):
            x, cells = layer(x, *before)
            after.append((x[:, -1], cells[:, -1]))
        return self.lm_head(x), after


def _with_forget_bias(bias: mx.array, forget: str) -> mx.array:
    """`bias` [4·h], gates in MLX's order i f g o, with the forget gates' part set."""
    i, f, g, o = mx.split(bias, 4)
    if forget == FORGET_CHRONO:
        f = mx.log(mx.random.uniform(1.0, _LONGEST_MEMORY - 1.0, f.shape))
        i = -f
    else:
        f = mx.full(f.shape, {FORGET_ZERO: 0.0, FORGET_ONE: 1.0}[forget])
    return mx.concatenate([i, f, g, o])


def make_lstm(seed: int, forget: str = FORGET_ONE) -> LstmModel:
    """An LSTM with the random weights of `seed`."""
    mx.random.seed(seed)
    return _evaluated(LstmModel(forget))


def decoder_config() -> ModelConfig:
    """A plain decoder of today: RMS norms before, RoPE, gated SiLU MLP."""
    block = BlockConfig(RopeConfig(base=10000.0, dims=HEAD_DIM))
    return ModelConfig(
        family="llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=EMBEDDING,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
        feed_forward=FEED_FORWARD,
        context=CONTEXT,
        norm=Norm(eps=1e-5),
        blocks=(block,) * DECODER_LAYERS,
    )


def make_decoder(seed: int) -> Decoder:
    """A decoder with the random weights of `seed`, in MLX's own initialisation."""
    mx.random.seed(seed)
    return _evaluated(Decoder(decoder_config()))


def random_ids(seed: int, length: int) -> list[int]:
    """Tokens that both models read."""
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


def describe(model: LstmModel | Decoder) -> Network:
    """Its name, size and shape."""
    parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    if isinstance(model, LstmModel):
        shape = f"{LSTM_LAYERS} layers of {HIDDEN} units"
        return Network("LSTM", parameters, f"{shape}, embeddings of {EMBEDDING}")
    shape = f"{DECODER_LAYERS} layers of {HEADS} heads of {HEAD_DIM} and an MLP of {FEED_FORWARD}"
    return Network("decoder", parameters, f"{shape}, embeddings of {EMBEDDING}")


def _evaluated(model: nn.Module) -> nn.Module:
    mx.eval(model.parameters())
    return model
