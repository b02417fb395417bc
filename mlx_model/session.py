"""A session on MLX: one sequence, its tokens and its KV caches."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx

from ..runtime.engine import (
    Choose,
    Engine,
    Progress,
    check_room,
    check_tokens,
    verifiable_tokens,
)
from ..runtime.errors import Cancelled
from ..runtime.memory import check_memory
from .caches.full import KVCache
from .decoder import Decoder
from .mlx_ops import MlxOps

_CHUNK = 512  # tokens of one prefill call


class MlxSession:
    """Fulfils `runtime.engine.Session`.

    Two things cannot be had from the caches alone: a rollback past what windowed layers still
    hold, and lengths from which the model rotates keys otherwise (longrope once, dynamic NTK with
    every token). Both are answered by computing the sequence's tokens anew, so a session says what
    one prefill would say.
    """

    def __init__(self, engine: Engine, decoder: Decoder, caches: list[KVCache]):
        self._engine, self._decoder = engine, decoder
        self._tokens: list[int] = []  # those in the caches, but for one that decode has not read
        self._rotated_as = 0  # how the cached keys are rotated, see `RopeConfig.rotated_as`
        self.caches = caches  # one a layer

    @property
    def length(self) -> int:
        return self.caches[0].length

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> mx.array:
        self._check(tokens)
        total = self.length + len(tokens)
        self._reserve(total)
        self._rotate_for(total)
        for start in range(0, len(tokens), _CHUNK):
            if should_stop is not None and should_stop():
                raise Cancelled("prefill was stopped")
            logits = self._append(tokens[start : start + _CHUNK], last=1, total=total)
            mx.eval(logits, [cache.state for cache in self.caches])
            if progress is not None:
                progress(min(start + _CHUNK, len(tokens)), len(tokens))
        return logits[-1]

    def step(self, token: int) -> mx.array:
        self._check([token])
        return self._forward([token], last=1)[-1]

    def verify(self, tokens: Sequence[int]) -> mx.array:
        self._check(tokens)
        return self._forward(tokens, last=0)

    def verifiable(self, length: int, count: int) -> int:
        context, rotated_as = self._engine.info.context, self._decoder.config.rotated_as
        return verifiable_tokens(length, count, context, rotated_as)

    def decode(self, logits: mx.array, choose: Choose) -> Iterator[int]:
        token = choose(logits, 0)
        mx.async_eval(token)
        index = known = 0  # `known` tokens of this call are in the caller's cache
        start = self.length
        try:
            while True:
                following = None
                if self.length < self._engine.info.context:
                    # The next step is under way before this token is read: the device never waits.
                    index += 1
                    following = choose(self._forward(token.reshape(1), last=1)[-1], index)
                    mx.async_eval(following)
                self._tokens.append(token.item())
                yield self._tokens[-1]
                check_room(start + known, 1, self._engine.info.context)
                known += 1
                token = following
        finally:
            self.rollback(start + known)

    def rollback(self, length: int) -> None:
        if 0 < length < max(cache.earliest for cache in self.caches):
            self._compute_anew(length, self._rotated_as)
            return
        for cache in self.caches:
            cache.rollback(length)
        del self._tokens[length:]

    def fork(self) -> "MlxSession":
        other = MlxSession(self._engine, self._decoder, [cache.fork() for cache in self.caches])
        other._tokens, other._rotated_as = list(self._tokens), self._rotated_as
        return other

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        self._rotate_for(self.length)  # as `load` will take it to be, whatever was rolled back
        arrays = {}
        for index, cache in enumerate(self.caches):
            arrays |= {f"{index}.{name}": array for name, array in cache.saved().items()}
        metadata = {
            "tokens": json.dumps(list(tokens)),
            "fingerprint": self._engine.info.fingerprint,
        }
        partial = path.with_name(f".{path.name}.{os.getpid()}.safetensors")
        try:
            mx.save_safetensors(str(partial), arrays, metadata)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self, arrays: dict[str, mx.array], tokens: Sequence[int]) -> None:
        """Fill this empty session with what one of the same engine has saved."""
        for index, cache in enumerate(self.caches):
            mark = f"{index}."
            cache.load({n.removeprefix(mark): a for n, a in arrays.items() if n.startswith(mark)})
        self._tokens = list(tokens)
        self._rotated_as = self._decoder.config.rotated_as(len(tokens))

    def advance(self, token: int) -> None:
        """Count a token whose keys and values are in the caches."""
        self._tokens.append(token)

    def _reserve(self, total: int) -> None:
        """Raise InputError unless there is memory for `total` tokens."""
        added = self._engine.memory_needed(total) - self._engine.memory_needed(self.length)
        check_memory(added, f"a KV cache of {total} tokens")

    def _forward(self, tokens: Sequence[int] | mx.array, last: int) -> mx.array:
        total = self.length + len(tokens)
        self._rotate_for(total)
        return self._append(tokens, last, total)

    def _append(self, tokens: Sequence[int] | mx.array, last: int, total: int) -> mx.array:
        """Append `tokens`; logits [rows, V] of the `last` rows (0: all), unevaluated.

        `total`: the tokens of the sequence that they belong to.
        """
        ids = mx.array(tokens, dtype=mx.int32)[None]  # [1, L]
        if not isinstance(tokens, mx.array):
            self._tokens.extend(tokens)
        return self._decoder(MlxOps(last, total), ids, self.caches)[0]

    def _rotate_for(self, total: int) -> None:
        """Make the cached keys those of a sequence of `total` tokens."""
        wanted = self._decoder.config.rotated_as(total)
        if wanted != self._rotated_as and self.length:
            self._compute_anew(self.length, wanted)
        self._rotated_as = wanted

    def _compute_anew(self, length: int, rotated_as: int) -> None:
        """Refill the caches with the first `length` tokens, in a sequence of `rotated_as`."""
        tokens, self._tokens = self._tokens[:length], []
        for cache in self.caches:
            cache.rollback(0)
        for start in range(0, length, _CHUNK):
            self._append(tokens[start : start + _CHUNK], last=1, total=rotated_as or length)
            mx.eval([cache.state for cache in self.caches])

    def _check(self, tokens: Sequence[int]) -> None:
        info = self._engine.info
        check_tokens(tokens, info.vocab_size)
        check_room(self.length, len(tokens), info.context)
