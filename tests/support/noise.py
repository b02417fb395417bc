"""A model that knows nothing: each token's logits are noise, which only a constraint can guide."""

from collections.abc import Sequence

import numpy as np

from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer

from .fake_engine import FakeEngine, Model


def noise(vocab_size: int, seed: int = 0, favoured: Sequence[int] = ()) -> Model:
    """Standard normal logits by place; tokens `favoured` are 4 likelier."""

    def model(tokens: list[int]) -> np.ndarray:
        logits = np.random.default_rng([seed, len(tokens)]).standard_normal(vocab_size)
        logits[list(favoured)] += 4
        return logits.astype(np.float32)

    return model


def noisy_generator(
    tokenizer: Tokenizer, seed: int = 0, favoured: Sequence[int] = (), beyond: int = 5
) -> Generator:
    """A generator of noise; its logits have `beyond` tokens more than the tokenizer."""
    vocab_size = tokenizer.vocab_size + beyond
    engine = FakeEngine(noise(vocab_size, seed, favoured), vocab_size, context=1 << 14)
    return Generator(engine, tokenizer)
