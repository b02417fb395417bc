"""The protocol that every engine fulfils, so that generation is written once above it.

Shapes: L query length of the call · V vocabulary. A session is one sequence (B = 1) with its
KV cache. Logits come in the engine's own array type (`Engine.xp`: numpy or mlx.core), float32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from .errors import ContextError, InputError

Array = Any  # numpy.ndarray or mlx.core.array, as the engine's `xp` says

# choose(logits [V], index) -> token id as a 0-d integer array of the engine's namespace.
# `index` counts the tokens chosen in this call of `decode`, from 0. A negative id says that
# there was nothing to choose from (all logits NaN or masked).
Choose = Callable[[Array, int], Array]

# called as progress(done, total), in tokens, after each prefill chunk
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VerifyCost:
    """What one `verify` of several tokens takes longer than a step, in steps.

    A step reads the weights once and the KV cache once; `cached` is the bytes of the latter over
    those of the former. The defaults are those of onnxruntime's CPU where other kernels run for
    several tokens than for one: slow to begin with, then cheap by the token.
    """

    call: float = 1.5  # once
    token: float = 0.1  # for each token after the first
    cache: float = 0.0  # for each of them, times `cached`

    def __call__(self, count: int, cached: float) -> float:
        """Steps that `count` tokens after the first one take; measured up to 6,000 keys."""
        return (self.call + count * (self.token + self.cache * cached)) / (1 + 2.1 * cached)


@dataclass(frozen=True)
class EngineInfo:
    """What a caller needs to know of a loaded model; lengths in tokens, sizes in bytes."""

    backend: str  # "mlx" or "onnx"
    model: str  # the name it was loaded under
    fingerprint: str  # equal fingerprints: a saved cache of one restores into the other
    vocab_size: int  # V
    context: int  # longest sequence, prompt and reply together
    weight_bytes: int  # bytes the weights hold in memory
    kv_bytes_per_token: int  # bytes of KV cache that one token adds, all layers together
    rows_alike: bool = False  # what `verifiable` admits gets the same bits as by a step each
    verify_cost: VerifyCost = VerifyCost()

    def bytes_read(self, length: int) -> int:
        """Bytes that a step after `length` tokens reads, which is what most of its time goes to."""
        return self.weight_bytes + length * self.kv_bytes_per_token


class Session(Protocol):
    """One sequence and its KV cache."""

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Array:
        """Append `tokens` in chunks and return the last one's logits [V].

        Raises ContextError when they do not fit, InputError for an empty list or an id outside
        the vocabulary, Cancelled when `should_stop` answers True between two chunks (the chunks
        done until then stay in the cache).
        """

    def step(self, token: int) -> Array:
        """Append one token and return its logits [V]."""

    def verify(self, tokens: Sequence[int]) -> Array:
        """Append `tokens` and return the logits of each [L, V] (for speculation, perplexity)."""

    def verifiable(self, length: int, count: int) -> int:
        """How many of `count` tokens after the first `length` one `verify` takes at once, and as
        that many steps would: not past the context, nor to where the model rotates otherwise.
        """

    def decode(self, logits: Array, choose: Choose) -> Iterator[int]:
        """Yield the token that `choose` takes from `logits`, then from each following step.

        The iterator is endless; the caller stops it with `close()`. A token is in the cache once
        the *next* one has been yielded; on `close()` the cache holds every yielded token but the
        last. An engine may run ahead of the caller, as long as that stays invisible. Stops with
        ContextError when the context is full.
        """

    def rollback(self, length: int) -> None:
        """Forget all tokens after the first `length`; as if they had never been appended."""

    def fork(self) -> "Session":
        """An independent session that starts from this one's tokens."""

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        """Write the KV cache and the `tokens` it stands for to one file, atomically."""


class Batch(Protocol):
    """Sessions of one engine that decode together; each computes what it would alone.

    A session of a batch is a `Session` as any other, so that a prompt is prefilled by itself
    between two steps of the rest. A fork of it takes another slot: InputError when there is none.
    """

    slots: int  # the most sessions that are open at once

    def open(self) -> Session:
        """An empty session in a free slot. Raises InputError when all are taken."""

    def step(self, sessions: Sequence[Session], tokens: Sequence[int]) -> Array:
        """Append one token to each of `sessions`, any of those open in any order.

        Returns their logits [n, V] in that order, good until the next step. Raises before any
        session has changed: ContextError when one is full, InputError for an id outside the
        vocabulary, or when the slots must grow and memory is short; ValueError for a session that
        is closed, named twice or of another batch, and for none at all.
        """

    def close(self, session: Session) -> None:
        """Free the session's slot; the session is not used again (ValueError)."""


class Engine(Protocol):
    """A loaded model that opens sessions."""

    info: EngineInfo
    xp: ModuleType  # numpy or mlx.core

    def open(self, capacity: int | None = None) -> Session:
        """A new, empty session; `capacity` tokens are reserved at once (grows when needed).

        Raises InputError, with both numbers, when the memory needed exceeds what is available.
        """

    def open_batch(self, slots: int, capacity: int) -> Batch:
        """Room for `slots` sessions of `capacity` tokens each, which grows when one needs more.

        Where the model or its caches cannot be computed as a batch, sessions step one after the
        other. Raises InputError as `open` does, and for fewer than 1 slot or token.
        """

    def memory_needed(self, length: int) -> int:
        """Bytes of KV cache that a session of `length` tokens holds."""

    def restore(self, path: Path) -> tuple[Session, list[int]]:
        """A session and its tokens from a file that `Session.save` wrote.

        Raises InputError when the file is damaged or belongs to another model.
        """


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InputError for an empty list or an id outside 0…V−1."""
    if len(tokens) == 0:
        raise InputError("the prompt is empty; give at least one token")
    low, high = min(tokens), max(tokens)
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise InputError(f"token id {bad} is outside the vocabulary of {vocab_size} tokens")


def check_room(length: int, added: int, context: int) -> None:
    """Raise ContextError when `added` more tokens after `length` pass the context."""
    if length + added > context:
        raise ContextError(
            f"{length + added} tokens do not fit the context of {context} tokens; "
            "shorten the prompt or start a new conversation"
        )


def verifiable_tokens(
    length: int, count: int, context: int, rotated_as: Callable[[int], int]
) -> int:
    """`Session.verifiable` of a session whose sequences of n tokens are rotated alike where
    `rotated_as(n)` is.
    """
    count = min(count, context - length)
    while count > 1 and rotated_as(length + count) != rotated_as(length + 1):
        count -= 1
    return max(count, 1)
