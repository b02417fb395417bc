"""How well a contestant foretells a text, from its logits; runs in the worker."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Logits = Callable[[Sequence[int]], np.ndarray]


def measure(logits: Logits, tokens: list[int], reference: str, piece: int) -> dict[str, Any]:
    """Perplexity of `tokens`, and how far the logits are from those in the file `reference`.

    The text is read in pieces of `piece` tokens, so that all but the first read the KV cache as it
    is stored. KL divergence, in nats, is the mean over all tokens of KL(reference || contestant).
    """
    exact = np.load(reference, mmap_mode="r")  # [L, V]
    nats, divergence, agreed = 0.0, 0.0, 0
    for start in range(0, len(tokens), piece):
        part = tokens[start : start + piece]
        ours = _log_softmax(logits(part))
        theirs = _log_softmax(exact[start : start + len(part)])
        following = tokens[start + 1 : start + len(part) + 1]
        nats -= float(ours[np.arange(len(following)), following].sum())
        divergence += float((np.exp(theirs) * (theirs - ours)).sum())
        agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    return {
        "perplexity": math.exp(nats / (len(tokens) - 1)),
        "kl": divergence / len(tokens),
        "top1": agreed / len(tokens),
    }


def write_reference(logits: Logits, tokens: list[int], path: str, piece: int) -> dict[str, Any]:
    """Write the logits [L, V] of `tokens` to the file `path`, for `measure` to compare with."""
    parts = [logits(tokens[at : at + piece]) for at in range(0, len(tokens), piece)]
    np.save(path, np.concatenate(parts).astype(np.float32))
    return measure(_repeat(parts), tokens, path, piece)


def _repeat(parts: Sequence[np.ndarray]) -> Logits:
    rest = iter(parts)
    return lambda _: next(rest)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
